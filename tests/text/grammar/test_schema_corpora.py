"""bench/schema_corpora.py reads tests in Rust: what is literal in them, and nothing else. The files of the packages are not here; these lines are ours."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["TD_SOURCE_DIR"], "bench"))
import schema_corpora

TESTS = r"""
lazy_static! {
    static ref POINT: Value = json!({"type": "object", // of two
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"],
    });
}

#[rstest]
#[case::right(&json!({"x": 1, "y": -2}), true)]
#[case(&json!({"x": 1}), false)]
fn point(#[case] sample: &Value, #[case] expected: bool) {
    json_schema_check(&POINT, sample, expected);
}

#[rstest]
fn few(#[values(json!("a\u{e9}"), json!(r"b"))] sample: Value) {
    let schema = &json!({"enum": ["aé", "b"]});
    json_schema_check(schema, &sample, true);
}

#[rstest]
#[case(7)]
fn computed(#[case] i: i64) {
    json_schema_check(&json!({"type": "integer"}), &json!(i), i > 3);
}

#[test]
fn own_rule() {
    json_schema_check(&json!({"type": "integer"}), &json!(1.0), false);
    json_schema_check(&json!({"type": "string", "format": "date"}), &json!("x"), false);
}
"""


class SchemaCorpora(unittest.TestCase):
    def test_rust(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "parser/tests"))
            with open(os.path.join(folder, "parser/tests/test_json_own.rs"), "w", encoding="utf-8") as f:
                f.write(TESTS)
            (point, points), (few, texts), (date, dates) = schema_corpora.llguidance(folder)
        self.assertEqual((point["required"], points), (["x", "y"], [({"x": 1, "y": -2}, True), ({"x": 1}, False)]))
        self.assertEqual((few, texts), ({"enum": ["aé", "b"]}, [("aé", True), ("b", True)]))
        self.assertEqual((date["format"], dates), ("date", [("x", False)]), "and not that 1.0 is no integer, which is a rule of one engine")

    def test_strict(self):
        self.assertEqual(schema_corpora.strict({"properties": {"a": {"prefixItems": [True]}}, "default": {"properties": {}}}),
                         {"properties": {"a": {"prefixItems": [True], "items": False}}, "default": {"properties": {}}, "additionalProperties": False})
