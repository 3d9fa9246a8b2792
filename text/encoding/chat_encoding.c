/* The encodings, by the model_type of config.json. */
#include "text/encoding/chat_encoding.h"

#include <string.h>

#include "text/encoding/deepseek_dsml.h"

const td_chat_encoding *td_chat_encoding_find(const char *model_type) {
    static const td_chat_encoding ENCODINGS[] = {
        {"deepseek_v32", "<｜DSML｜function_calls> <think> </think>", td_deepseek_v32_render},
        {"deepseek_v4", "<｜DSML｜tool_calls> <think> </think>", td_deepseek_v4_render},
    };
    for (size_t i = 0; i < sizeof ENCODINGS / sizeof *ENCODINGS; i++)
        if (!strcmp(ENCODINGS[i].model_type, model_type)) return &ENCODINGS[i];
    return NULL;
}
