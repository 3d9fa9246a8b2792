"""The model bridge/ticket_protocol.pml, in both forms of hand-over.

usage: test_ticket_protocol.py model|faults     (TD_SPIN, TD_CC, TD_SOURCE_DIR from CTest)
"""
import sys

from promela import Model

MODEL = Model("bridge", "ticket_protocol.pml")
FORMS = {"HOST_CALL": "FAULT_BELL_", "DOORBELL": "FAULT_CALL_"}  # and the faults that it cannot have

for form, others in FORMS.items():
    if sys.argv[1] == "faults":
        MODEL.check_faults(f"FORM={form}", "DEFER=1", but=others, least=15)
        continue
    for deferred in (0, 1):
        MODEL.check(f"FORM={form}", f"DEFER={deferred}", every_statement=deferred)
