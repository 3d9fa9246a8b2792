/* td_quantize writes a folder that gives the bits of quantising while loading. It continues, refuses and fails as its
 * interface says. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/threads/thread_layout.h"
#include "cpu_experts/cpu_experts.h"
#include "model/arch/config_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/experts_load.h"
#include "quant/weight_quant.h"
#include "tandem_tools.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/model/folder_files.h"
#include "tests/td_test.h"

static char TMP[] = "/tmp/td_quantize_XXXXXX";
static char OUT[64];

static const char *golden(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, TD_SOURCE_DIR "/tests/data/golden/%s", name);
    return path;
}

static const char *in_out(const char *name) {
    static char path[4][512];
    static int  next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", OUT, name);
    return path[next];
}

typedef struct {
    uint64_t done, total;
    size_t   calls;
} seen;

static void on_progress(void *user, uint64_t done, uint64_t total, const char *what) {
    seen *s = user;
    assert_true(done >= s->done && done <= total && (s->calls == 0 || total == s->total) && what[0]);
    *s = (seen){done, total, s->calls + 1};
}

static td_quantize_options options_for(const char *model) {
    return WITH(td_quantize_options, .model_path = model, .output_path = OUT, .quantization = "w8a8_int8",
                .expert_quantization = "int4", .threads = 2, .subpool_count = 1);
}

static void quantize_ok(const td_quantize_options *o) {
    td_error err = {0};
    if (td_quantize(o, &err) != TD_OK) fail_msg("%s: %s", o->model_path, err.text);
}

static void quantize_fails(const td_quantize_options *o, td_status want, const char *says) {
    td_error  err = {0};
    td_status s = td_quantize(o, &err);
    if (s != want || !strstr(err.text, says)) fail_msg("status %d, '%s'", s, err.text);
}

/* One weight as the folder gives it, against the same weight of the source quantised here. */
static void compare_weight(const td_tensor_view *have, const td_tensor_view *source, bool int8) {
    size_t n = source->shape[0], k = source->rank > 1 ? source->shape[1] : 1;
    assert_int_equal(have->rank, source->rank);
    assert_int_equal(have->shape[0], n);
    if (!int8) {
        assert_int_equal(have->dtype, source->dtype);
        assert_memory_equal(have->data, source->data, n * k * td_dtype_bytes(source->dtype));
        return;
    }
    FREED int8_t *codes = malloc(n * k);
    FREED float  *scales = malloc(n * sizeof *scales);
    assert_non_null(codes);
    assert_non_null(scales);
    assert_true(td_quantize_weight_i8(source->dtype, source->data, n, k, codes, k, scales));
    assert_int_equal(have->dtype, TD_DT_I8);
    assert_memory_equal(have->data, codes, n * k);
    assert_memory_equal(have->scale, scales, n * sizeof *scales);
}

static td_pool *make_pool(uint32_t subpools) {
    td_worker_place places[2] = {{.cpu = TD_CPU_ANY}, {.cpu = TD_CPU_ANY, .subpool = subpools - 1}};
    td_pool        *pool;
    OK(td_pool_create(places, 2, &pool, NULL));
    return pool;
}

/* Pack a layer straight from the source, as quantising on load does, and compare with the folder's file byte by byte. */
static void compare_experts(const td_checkpoint *source, const td_model_config *c) {
    td_experts_config shape = WITH(td_experts_config, .n_layers = td_model_config_moe_layers(c), .n_experts = c->n_experts,
                                   .hidden = c->hidden, .inter = c->moe_inter, .top_k = c->top_k, .format = TD_EXPERT_INT4C,
                                   .bias = c->expert_bias, .act_dtype = TD_DT_BF16, .max_tok = 1);
    td_pool          *pool = make_pool(1);
    FREED td_expert_weights *e = calloc(c->n_experts, sizeof *e);
    td_experts              *x;
    td_error                 err = {0};
    uint32_t                 index = 0;
    assert_non_null(e);
    if (td_experts_create(&shape, pool, &x, &err) != TD_OK) fail_msg("%s", err.text);
    for (uint32_t layer = 0; layer < c->n_layers + c->n_mtp_layers; layer++) {
        if (!c->is_moe[layer]) continue;
        td_scratch scratch = {0};
        char       mine[128], theirs[128];
        size_t     n_mine, n_theirs;
        for (uint32_t i = 0; i < c->n_experts; i++) {
            td_tensor_view *const views[] = {&e[i].gate,      &e[i].up,      &e[i].down,
                                             &e[i].gate_bias, &e[i].up_bias, &e[i].down_bias};
            for (size_t v = 0; v < sizeof views / sizeof *views; v++)
                OK(td_checkpoint_get(source, c, TD_ROLE_EXPERT_GATE + (td_role)v, layer, i, TD_FORM_FLOAT_OR_INT8, &scratch,
                                     views[v], NULL));
        }
        OK(load_views(x, index, e, NULL));
        snprintf(mine, sizeof mine, "%s/mine.tdx", TMP);
        td_expert_file_path(theirs, sizeof theirs, OUT, index);
        OK(td_experts_save_file(x, index, mine, td_checkpoint_source_hash(source), NULL));
        FREED char *a = read_file(mine, &n_mine), *b = read_file(theirs, &n_theirs);
        assert_int_equal(n_mine, n_theirs);
        assert_memory_equal(a, b, n_mine);
        unlink(mine);
        td_scratch_reset(&scratch);
        index++;
    }
    assert_int_equal(index, td_model_config_moe_layers(c));
    td_experts_destroy(x);
    td_pool_destroy(pool);
}

static void compare_folder(const char *model, bool w8a8) {
    td_model_config source_config, config;
    td_checkpoint  *source, *out;
    td_error        err = {0};
    OK(td_model_config_read(model, NULL, &source_config, NULL));
    OK(td_model_config_read(OUT, NULL, &config, NULL));
    assert_int_equal(td_quant_config_has_int8(&config.quant), w8a8);
    OK(td_checkpoint_open(model, &source, NULL));
    if (td_checkpoint_open(OUT, &out, &err) != TD_OK) fail_msg("%s", err.text);
    if (td_checkpoint_check_all(out, &config, false, &err) != TD_OK) fail_msg("%s", err.text);
    assert_false(td_checkpoint_has_experts(out, &config));
    assert_true(td_checkpoint_source_hash(out) == td_checkpoint_source_hash(source));
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        uint32_t n_layers, n_experts;
        td_role_extent(&config, role, &n_layers, &n_experts);
        if (td_role_is_expert(&config, role)) continue;
        for (uint32_t layer = 0; layer < n_layers; layer++) {
            td_scratch     scratch = {0};
            td_tensor_view a, b;
            td_tensor_spec spec;
            OK(td_checkpoint_get(out, &config, role, layer, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &a, NULL));
            OK(td_checkpoint_get(source, &source_config, role, layer, 0, TD_FORM_FLOAT_OR_INT8, &scratch, &b, NULL));
            assert_int_equal(a.data != NULL, b.data != NULL);
            bool tied_head = role == TD_ROLE_LM_HEAD && config.tie_embeddings;
            if (td_tensor_spec_get(&config, role, layer, 0, &spec))
                compare_weight(&a, &b, w8a8 && spec.format == TD_WEIGHT_W8A8 && !tied_head);
            td_scratch_reset(&scratch);
        }
    }
    compare_experts(source, &source_config);
    td_checkpoint_close(source);
    td_checkpoint_close(out);
}

TEST(several_streams_are_neither_rotated_nor_calibrated) {
    td_error            err = {0};
    td_quantize_options o = options_for(golden("deepseek_v4"));
    o.rotation = "hadamard";
    assert_int_equal(td_quantize(&o, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "several residual streams cannot be rotated"));
    o.rotation = "none";
    o.calibration_path = TD_SOURCE_DIR "/README.md";
    assert_int_equal(td_quantize(&o, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "leave out --calibration"));
}

TEST(output_equals_quantising_on_load) {
    static const char *const MODELS[] = {
        "deepseek_v3_yarn", "deepseek_v2_group", "qwen2_moe",   "qwen3_moe_tied",  "glm4_moe",    "glm4_moe_lite",
        "minimax_m2",       "kimi_k25",          "gpt_oss",     "qwen3_next",      "qwen3_5_moe", "deepseek_v32",
        "qwen3_vl_moe",     "glm_moe_dsa",       "deepseek_v4", "deepseek_v4_fp8", "kimi_linear", "glm5_next"};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        td_quantize_options o = options_for(golden(MODELS[i]));
        seen                s = {0};
        o.progress = on_progress;
        o.user = &s;
        quantize_ok(&o);
        assert_true(s.calls > 3 && s.done == s.total && s.total > 0);
        compare_folder(o.model_path, true);
        remove_folder(OUT);
    }
    td_quantize_options o = options_for(TD_SOURCE_DIR "/models/tale-v3-14m"); /* with an MTP layer and a tokenizer */
    quantize_ok(&o);
    compare_folder(o.model_path, true);
    size_t      a_len, b_len;
    FREED char *a = read_file(TD_SOURCE_DIR "/models/tale-v3-14m/tokenizer.json", &a_len),
               *b = read_file(in_out("tokenizer.json"), &b_len);
    assert_int_equal(a_len, b_len);
    assert_memory_equal(a, b, a_len);
    remove_folder(OUT);
}

TEST(without_quantisation_weights_stay) {
    td_quantize_options o = options_for(golden("deepseek_v2_lite"));
    o.quantization = "none";
    quantize_ok(&o);
    compare_folder(o.model_path, false);
    remove_folder(OUT);
}

/* A config.json alone gives a folder of its shape, twice the same, that loads as any other. */
TEST(dummy_weights_make_a_whole_folder) {
    char            config[600];
    td_model_config c;
    td_checkpoint  *ck;
    td_error        err = {0};
    uint64_t        first = 0;
    snprintf(config, sizeof config, "%s/config.json", golden("deepseek_v3_yarn"));
    td_quantize_options o = options_for(config);
    quantize_fails(&o, TD_EINVAL, "config.json is not a folder");
    o.load_dummy = true;
    for (int turn = 0; turn < 2; turn++) {
        quantize_ok(&o);
        quantize_ok(&o); /* finished files are kept */
        OK(td_model_config_read(OUT, NULL, &c, &err));
        assert_true(td_quant_config_has_int8(&c.quant));
        OK(td_checkpoint_open(OUT, &ck, &err));
        OK(td_checkpoint_check_all(ck, &c, false, &err));
        assert_false(td_checkpoint_has_experts(ck, &c));
        td_experts_config ec = WITH(td_experts_config, .n_layers = td_model_config_moe_layers(&c), .n_experts = c.n_experts,
                                    .hidden = c.hidden, .inter = c.moe_inter, .top_k = c.top_k);
        for (uint32_t i = 0; i < ec.n_layers; i++) {
            char path[512];
            td_expert_file_path(path, sizeof path, OUT, i);
            OK(td_experts_check_file(&ec, i, path, td_checkpoint_source_hash(ck), &err));
        }
        td_checkpoint_close(ck);
        size_t      len;
        FREED char *bytes = read_file(in_out("model-00002-of-00004.safetensors"), &len);
        uint64_t    sum = len;
        for (size_t i = 0; i < len; i++) sum = sum * 31 + (unsigned char)bytes[i];
        if (turn) assert_int_equal(sum, first);
        first = sum;
        remove_folder(OUT);
    }
}

/* A dummy's MTP layer has no copies of embedding and head, which would differ from the model's. */
TEST(dummy_weights_make_an_mtp_layer) {
    static const char *const MODELS[] = {"deepseek_v3_noqlora", "deepseek_v4", "glm5_next"};
    static const td_role     COPIES[] = {TD_ROLE_MTP_EMBED, TD_ROLE_MTP_HEAD};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        td_model_config     c;
        td_checkpoint      *ck;
        td_tensor_spec      s;
        td_quantize_options o = options_for(golden(MODELS[i]));
        o.load_dummy = true;
        quantize_ok(&o);
        OK(td_model_config_read(OUT, NULL, &c, NULL));
        OK(td_checkpoint_open(OUT, &ck, NULL));
        td_checkpoint_look_at_mtp(ck, &c);
        assert_int_equal(c.n_mtp_layers, 1);
        OK(td_checkpoint_check_all(ck, &c, false, NULL));
        for (size_t k = 0; k < sizeof COPIES / sizeof *COPIES; k++) {
            assert_true(td_tensor_spec_get(&c, COPIES[k], c.n_layers, 0, &s));
            assert_null(td_checkpoint_files_find(td_checkpoint_get_files(ck), s.name));
        }
        td_checkpoint_close(ck);
        remove_folder(OUT);
    }
}

static ino_t inode(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

TEST(an_interrupted_run_is_continued) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    char                first[128], second[128];
    size_t              n, m;
    assert_int_equal(mkdir(OUT, 0755), 0);
    write_file(in_out("tandem_quantize.json.part"), "x", 1); /* killed before there was a marker */
    quantize_ok(&o);
    assert_int_equal(inode(in_out("tandem_quantize.json.part")), 0);
    td_expert_file_path(first, sizeof first, OUT, 0);
    td_expert_file_path(second, sizeof second, OUT, 1);
    ino_t       shard = inode(in_out("model-00001-of-00005.safetensors")), kept = inode(first);
    FREED char *want = read_file(second, &n);
    assert_true(shard && kept);
    /* the state after a kill: no config, a layer missing, one torn under a temporary name, leftovers */
    unlink(in_out("config.json"));
    unlink(second);
    write_file(in_out("model-00001-of-00005.safetensors.part"), "x", 1);
    write_file(in_out("experts-00001.tdx.tmp.123"), "x", 1);
    quantize_ok(&o);
    assert_true(!inode(in_out("model-00001-of-00005.safetensors.part")) && !inode(in_out("experts-00001.tdx.tmp.123")));
    assert_true(inode(in_out("model-00001-of-00005.safetensors")) == shard && inode(first) == kept);
    FREED char *have = read_file(second, &m);
    assert_int_equal(n, m);
    assert_memory_equal(have, want, n);
    compare_folder(o.model_path, true);
    /* damage under a final name is written anew */
    assert_int_equal(truncate(in_out("model-00001-of-00005.safetensors"), 1000), 0);
    assert_int_equal(truncate(second, 1000), 0);
    quantize_ok(&o);
    compare_folder(o.model_path, true);
    remove_folder(OUT);
}

TEST(other_folders_are_left_alone) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    assert_int_equal(mkdir(OUT, 0755), 0);
    write_file(in_out("precious.txt"), "x", 1);
    quantize_fails(&o, TD_EINVAL, "was not written by 'tandem quantize'");
    o.force = true;
    quantize_fails(&o, TD_EINVAL, "was not written by 'tandem quantize'");
    assert_true(inode(in_out("precious.txt")) != 0);
    assert_int_equal(remove_folder(OUT), 1);

    o.force = false;
    o.output_path = o.model_path;
    quantize_fails(&o, TD_EINVAL, "the model folder itself");
    o.output_path = OUT;

    quantize_ok(&o);
    td_quantize_options other = options_for(golden("deepseek_v2_lite"));
    quantize_fails(&other, TD_EINVAL, "--force");
    o.quantization = "none";
    quantize_fails(&o, TD_EINVAL, "--force");
    other.force = true;
    quantize_ok(&other);
    compare_folder(other.model_path, true);
    remove_folder(OUT);
}

/* Where emptying the folder for other options does not come to its end, there is no model folder, and still a marker. */
TEST(a_folder_that_is_half_emptied_is_no_model) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    quantize_ok(&o);
    assert_int_equal(mkdir(in_out("experts-99999.tdx"), 0755), 0); /* cannot be unlinked */
    write_file(in_out("chat_template.jinja"), "other", 5);         /* of a model that had one */
    o.quantization = "none";
    o.force = true;
    quantize_fails(&o, TD_EIO, "experts-99999.tdx: cannot remove");
    assert_true(!inode(in_out("config.json")) && inode(in_out("tandem_quantize.json")));
    assert_int_equal(rmdir(in_out("experts-99999.tdx")), 0);
    quantize_ok(&o);
    compare_folder(o.model_path, false);
    assert_false(inode(in_out("chat_template.jinja")));
    remove_folder(OUT);
}

/* Not even with force: the other run's marker is not the one that is wanted, but its files are still being written. */
TEST(a_folder_that_is_being_written_is_left_alone) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    quantize_ok(&o);
    ino_t shard = inode(in_out("model-00001-of-00005.safetensors")), marker = inode(in_out("tandem_quantize.json"));
    int   other = open(OUT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
    quantize_fails(&o, TD_EBUSY, "another 'tandem quantize' is writing this folder");
    o.quantization = "none";
    o.force = true;
    quantize_fails(&o, TD_EBUSY, "another 'tandem quantize' is writing this folder");
    assert_true(inode(in_out("model-00001-of-00005.safetensors")) == shard &&
                inode(in_out("tandem_quantize.json")) == marker);
    close(other);
    write_file(in_out("calibration_text.txt"), "x", 1); /* a name like ours */
    quantize_ok(&o);
    assert_true(inode(in_out("calibration_text.txt")) != 0);
    remove_folder(OUT);
}

TEST(what_cannot_be_quantised_is_refused) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    o.quantization = "fp4";
    quantize_fails(&o, TD_EINVAL, "fp4");
    o = options_for(golden("qwen3_moe"));
    o.expert_quantization = "int3";
    quantize_fails(&o, TD_EINVAL, "int3");
    o = options_for("/nonexistent");
    quantize_fails(&o, TD_ENOTFOUND, "/nonexistent");
    o = options_for(golden("gpt_oss"));
    o.method = "clip";
    quantize_fails(&o, TD_ENOTSUP, "have biases, and are rounded by the method nearest alone");
    o = options_for(golden("gpt_oss"));
    o.output_format = "compressed-tensors";
    quantize_fails(&o, TD_ENOTSUP, "have biases, which output_format compressed-tensors has no place for");
    o = options_for(golden("gpt_oss"));
    o.rotation = "hadamard";
    quantize_fails(&o, TD_ENOTSUP, "a model whose experts have biases cannot be rotated");
    o = options_for(golden("qwen3_moe"));
    quantize_ok(&o);
    char                copy[64];
    td_quantize_options again = options_for(OUT);
    snprintf(copy, sizeof copy, "%s/again", TMP);
    again.output_path = copy;
    quantize_fails(&again, TD_EINVAL, "quantised already");
    assert_int_equal(inode(copy), 0);
    remove_folder(OUT);
}

static void fails_beyond(const td_quantize_options *o, rlim_t bytes, const char *says) {
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){bytes, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    quantize_fails(o, TD_EIO, says);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(inode(in_out("config.json")), 0);
    DIR *dir = opendir(OUT);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) assert_true(!strstr(e->d_name, ".part") && !strstr(e->d_name, ".tmp."));
    closedir(dir);
}

/* A write that fails (here: the limit on a file's size, as a full disk does) gives a sentence, leaves no torn file, and can
 * be continued. */
TEST(a_failing_write_is_told_and_continued) {
    td_quantize_options o = options_for(golden("qwen3_moe"));
    fails_beyond(&o, 20000, "File too large");                        /* both of the threads that write */
    fails_beyond(&o, 40000, "model-00001-of-00005.safetensors.part"); /* 63 KB; packed experts have 33 KB */
    quantize_ok(&o);
    compare_folder(o.model_path, true);
    for (uint32_t layer = 0; layer < 3; layer += 2) { /* the last one's failure is told at the end */
        char path[128];
        td_expert_file_path(path, sizeof path, OUT, layer);
        unlink(in_out("config.json"));
        unlink(path);
        fails_beyond(&o, 20000, strrchr(path, '/'));
        assert_int_equal(inode(path), 0);
        quantize_ok(&o);
        compare_folder(o.model_path, true);
    }
    remove_folder(OUT);
}

TEST(a_weight_that_is_not_finite_is_refused) {
    static const struct {
        const char *tensor, *quantization;
    } CASE[] = {{"model.layers.0.self_attn.q_proj.weight", "w8a8_int8"},
                {"model.layers.0.self_attn.q_proj.weight", "none"},
                {"model.norm.weight", "w8a8_int8"},
                {"model.embed_tokens.weight", "w8a8_int8"},
                {"model.layers.0.mlp.gate.weight", "none"}};
    char   dir[64], to[128];
    size_t n;
    snprintf(dir, sizeof dir, "%s/nan", TMP);
    assert_int_equal(mkdir(dir, 0755), 0);
    copy_files(golden("qwen3_moe"), dir, (const char *const[]){"config.json"}, 1);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        td_checkpoint *c;
        size_t         header, size;
        char           says[96];
        OK(td_checkpoint_open(golden("qwen3_moe"), &c, NULL));
        const char *base = td_safetensors_bytes(td_checkpoint_files_at(td_checkpoint_get_files(c), 0), &header, &size);
        size_t      at =
            (size_t)((const char *)td_checkpoint_files_find(td_checkpoint_get_files(c), CASE[i].tensor)->data - base);
        td_checkpoint_close(c);
        FREED char *weights = read_file(golden("qwen3_moe/model.safetensors"), &n);
        memcpy(weights + at + 8, "\xc0\x7f\xc0\x7f", 4); /* NaN in bf16 and in f32 */
        write_file(to, weights, n);
        td_quantize_options o = options_for(dir);
        o.quantization = CASE[i].quantization;
        snprintf(says, sizeof says, "%s holds an infinity or a NaN", CASE[i].tensor);
        quantize_fails(&o, TD_EFORMAT, says);
        remove_folder(OUT);
    }
    remove_folder(dir);
}

BEFORE_ALL {
    assert_non_null(mkdtemp(TMP));
    snprintf(OUT, sizeof OUT, "%s/out", TMP);
}

AFTER_ALL {
    remove_folder(OUT);
    assert_int_equal(rmdir(TMP), 0);
}
