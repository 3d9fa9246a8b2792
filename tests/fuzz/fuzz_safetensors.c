/* Fuzz target: any bytes as a safetensors file. They are parsed or refused, and all accepted tensors lie within the bytes.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "model/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    td_safetensors *f;
    td_error        err = {0};
    td_status       s = td_safetensors_parse(data, size, "input", &f, &err);
    assert((s == TD_OK) == (f != NULL));
    if (s != TD_OK) {
        assert(err.text[0] && err.status == s && strlen(err.text) < sizeof err.text && !strchr(err.text, '\n'));
        return 0;
    }
    const uint8_t *previous_end = data;
    for (size_t i = 0; i < td_safetensors_count(f); i++) {
        const td_safetensors_entry *e = td_safetensors_at(f, i);
        const uint8_t              *p = e->data;
        assert(p >= previous_end && p + e->bytes <= data + size && e->rank <= TD_RANK_MAX && strlen(e->name) <= size);
        size_t elements = 1;
        for (uint32_t d = 0; d < e->rank; d++) elements *= e->shape[d];
        if (e->dtype != TD_DT_COUNT) assert(elements * td_dtype_bytes(e->dtype) == e->bytes);
        previous_end = p + e->bytes;
    }
    td_safetensors_metadata(f, "format");
    td_safetensors_close(f);
    return 0;
}
