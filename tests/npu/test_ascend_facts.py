"""The table of facts about the vendor's operations covers every operation of the backend, and every tensor that the stand-in declares for it."""
import collections
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["TD_SOURCE_DIR"], "scripts"))
import ascend_op_facts  # noqa: E402

# Operations that the published repositories have no definition of; tensors that no definition has, or that are not given.
UNDEFINED = {"aclnnKvRmsNormRopeCache", "aclnnQkvRmsNormRopeCache", "aclnnScatterPaKvCache", "aclnnTopk"}
UNDEFINED_TENSORS = {("aclnnMoeInitRoutingV2", "scale")}


class Facts(unittest.TestCase):
    def test_coverage(self):
        rows = collections.defaultdict(set)
        for op, tensor in re.findall(r'^FACT\((\w+), "([^"]*)"', ascend_op_facts.TABLE.read_text(), flags=re.M):
            rows[op].add(tensor)
        declared = {op: set(tensors) for op, _, _, tensors in ascend_op_facts.calls()}
        self.assertEqual({op for op, tensors in declared.items() if not tensors}, set(), "operations of which the stand-in declares no tensor")
        self.assertEqual(set(declared) - set(rows), UNDEFINED, "operations without facts")
        left = {(op, tensor) for op, tensors in declared.items() if op in rows for tensor in tensors - rows[op]}
        self.assertEqual(left, UNDEFINED_TENSORS, "tensors without facts")
        self.assertEqual({(op, tensor) for op, tensors in rows.items() for tensor in tensors - declared.get(op, set())}, set(), "facts about nothing")
        print(f"{len(rows)} of {len(declared)} operations, {sum(map(len, rows.values()))} of {sum(map(len, declared.values()))} tensors have facts")
