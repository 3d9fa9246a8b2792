"""The model residency/slot_protocol.pml, where resident experts stay in host memory and where they leave it.

usage: test_slot_protocol.py model|faults     (TD_SPIN, TD_CC, TD_SOURCE_DIR from CTest)
"""
import sys

from promela import Model

MODEL = Model("residency", "slot_protocol.pml")

for drop, others in (("DROP=0", "FAULT_DROP_"), ("DROP=1", "FAULT_KEEP_")):
    if sys.argv[1] == "faults":
        MODEL.check_faults(drop, but=others, least=6)
    else:
        MODEL.check(drop, "PASSES=3" if drop == "DROP=1" else "PASSES=4")
