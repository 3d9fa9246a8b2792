/* Machine files: which are accepted, the words in which others are refused, and the committed examples. */

#include <glob.h>

#include "plan/plan_machine.h"
#include "tests/td_test.h"

#define NODES                                                                                            \
    "nodes: 2\nnode-cores: 8\nnode-memory-gib: 64\nnode-read-gbps: 100\nnode-int8-gops: 2000\nnode-f32-" \
    "gflops: 500\n"
#define CARDS                                                                                                         \
    "cards: 1\ncard-memory-gib: 32\ncard-read-gbps: 800\ncard-int8-tops: 500\ncard-bf16-tflops: 250\ncard-block-us: " \
    "20\nlink-gbps: 24\nlink-latency-us: 10\nhandover-us: 10\n"

static td_plan_machine m;

static td_status parse(const char *text, td_error *err) {
    *err = (td_error){0};
    return td_plan_machine_parse("m.yaml", text, strlen(text), &m, err);
}

static void taken(const char *text) {
    td_error err;
    if (parse(text, &err) != TD_OK) fail_msg("%s", err.text);
}

static void refused(const char *text, const char *words) {
    td_error err;
    if (parse(text, &err) == TD_OK) fail_msg("taken: %s", text);
    if (strncmp(err.text, "m.yaml", 6) != 0 || !strstr(err.text, words)) fail_msg("%s\nhas not: %s", err.text, words);
}

TEST(a_machine) {
    taken("name: two nodes\n" NODES);
    assert_string_equal(m.name, "two nodes");
    assert_int_equal(m.n_nodes, 2);
    assert_true(m.node[1].cores == 8 && m.node[1].memory_bytes == 64.0 * (1 << 30) && m.node[1].read_bytes_per_s == 1e11 &&
                m.node[1].int8_ops_per_s == 2e12 && m.node[1].float_ops_per_s == 5e11 && m.node[1].channels == 0);
    assert_true(m.cards.count == 0 && !m.measured);
    assert_string_equal(m.kernels->name, "avx512vnni");
    assert_true(m.cpu.expert_read == m.kernels->shares.expert_read);

    taken(NODES CARDS "kernels: avx2\nexpert-read: 0.5\nnode_channels: 12\n");
    assert_true(m.cards.count == 1 && m.cards.link_s == 10 * 1e-6 && m.cards.int8_ops_per_s == 500 * 1e12);
    assert_true(m.cpu.expert_read == 0.5 && m.cpu.linear_int8 == td_plan_kernels_find("avx2")->shares.linear_int8);
    assert_true(m.node[0].channels == 12);

    taken(
        "nodes: 2\nnode-cores: 8, 4\nnode-memory-gib: 64 32\nnode-read-gbps: 100\nnode-int8-gops: 2e3\nnode-f32-gflops: "
        "500\n");
    assert_true(m.node[0].cores == 8 && m.node[1].cores == 4 && m.node[1].memory_bytes == 32.0 * (1 << 30));
}

TEST(bad_figures) {
    refused("", "'nodes' is missing: a whole number from 1 to 64");
    refused("nodes: 2\n", "'node-cores' is missing: a whole number from 1 to 1024 cores");
    refused(NODES "cards: 1\n", "'card-memory-gib' is missing: a number from 0.25 to 4096 GiB");
    refused("name: x\n" NODES CARDS "cards: 2\n", "twice");
    static const struct {
        const char *key, *value, *words;
    } bad[] = {{"node-read-gbps", "-1", "'node-read-gbps' must be a number from 0.1 to 10000 GB/s, not '-1'"},
               {"node-read-gbps", "nan", "must be a number from 0.1 to 10000 GB/s, not 'nan'"},
               {"node-read-gbps", "inf", "must be a number from 0.1"},
               {"node-read-gbps", "1e30", "must be a number from 0.1 to 10000 GB/s, not '1e30'"},
               {"node-read-gbps", "1e999", "must be a number"},
               {"node-read-gbps", "fast", "must be a number"},
               {"node-read-gbps", "100 100 100", "has 3 numbers: give one, or one for each of the 2 nodes"},
               {"node-read-gbps", "100 x", "must be a number"},
               {"node-read-gbps", "[100, 100]", "must have a plain value"},
               {"node-cores", "0", "'node-cores' must be a whole number from 1 to 1024 cores, not '0'"},
               {"node-cores", "1.5", "must be a whole number"},
               {"node-cores", "1000", "of all nodes are 2000 together"},
               {"nodes", "65", "'nodes' must be a whole number from 1 to 64, not '65'"},
               {"nodes", "0", "'nodes' must be a whole number"},
               {"nodes", "2 2", "'nodes' must be a whole number"},
               {"node-memory-gib", "0", "from 0.25 to 65536 GiB"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) { /* each in the place of the right one */
        char  text[1024] = "", lines[] = NODES;
        char *rest = lines;
        for (char *line; (line = strsep(&rest, "\n")) && *line;) {
            size_t n = strlen(bad[i].key);
            bool   this_one = !strncmp(line, bad[i].key, n) && line[n] == ':';
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s\n", this_one ? bad[i].key : line,
                     this_one ? ": " : "", this_one ? bad[i].value : "");
        }
        refused(text, bad[i].words);
    }
    refused(NODES "node-channel: 4\n", "there is no key 'node-channel'; docs/plan.md lists them");
    refused(NODES "kernels: mmx\n", "'kernels' must be one of avx512vnni, avx2");
    refused(NODES "expert-read: 0\n", "'expert-read' must be a number from 0.01 to 2 share");
    refused(NODES "name: \"a\\tb\"\n", "no control characters");
    refused("- nodes\n", "lines of 'key: value' are expected");
    refused("nodes: 2\nnodes: 2\n", "twice");
    refused("{", "not valid YAML");
}

TEST(examples) {
    glob_t files;
    assert_int_equal(glob(TD_SOURCE_DIR "/configs/machines/*.yaml", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        td_error err = {0};
        if (td_plan_machine_read(files.gl_pathv[i], &m, &err) != TD_OK) fail_msg("%s", err.text);
        assert_string_not_equal(m.name, "a machine without a name");
    }
    assert_true(files.gl_pathc >= 3);
    globfree(&files);
    td_error err = {0};
    assert_int_equal(td_plan_machine_read("/nowhere.yaml", &m, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "--machine: /nowhere.yaml: No such file"));
}

TEST(this_machine) {
    td_error err = {0};
    OK(td_plan_machine_measure(&m, &err));
    assert_true(m.measured && m.n_nodes >= 1);
    for (uint32_t i = 0; i < m.n_nodes; i++)
        assert_true(m.node[i].cores >= 1 && m.node[i].memory_bytes > 0 && m.node[i].read_bytes_per_s > 1e8 &&
                    m.node[i].int8_ops_per_s > 1e8 && m.node[i].float_ops_per_s > 1e7);
}

TEST(every_tier_has_shares) {
    static const char *const tiers[] = {"scalar", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "dotprod", "i8mm"};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) assert_non_null(td_plan_kernels_find(tiers[i]));
}
