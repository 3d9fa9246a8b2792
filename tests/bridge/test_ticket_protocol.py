"""The model bridge/ticket_protocol.pml, in both forms of hand-over, of passes that go whole and of those that may end within a ticket.

usage: test_ticket_protocol.py model|faults     (TD_SPIN, TD_CC, TD_SOURCE_DIR from CTest)
"""
import sys

from promela import Model

MODEL = Model("bridge", "ticket_protocol.pml")
FORMS = {"HOST_CALL": "FAULT_BELL_", "DOORBELL": "FAULT_CALL_"}  # and the faults that it cannot have

for form, others in FORMS.items():
    if sys.argv[1] == "faults":
        MODEL.check_faults(f"FORM={form}", "DEFER=1", but=(others, "FAULT_CUT_"), least=15)
        continue
    for deferred in (0, 1):
        MODEL.check(f"FORM={form}", f"DEFER={deferred}", every_statement=deferred)
        MODEL.check(f"FORM={form}", f"DEFER={deferred}", "CUT", every_statement=False)
if sys.argv[1] == "faults":
    MODEL.check_fault("FORM=HOST_CALL", "DEFER=1", "CUT", "FAULT_CUT_END_UNSEEN")
    MODEL.check_fault("FORM=DOORBELL", "DEFER=1", "CUT", "FAULT_CUT_BELL_KEPT")
