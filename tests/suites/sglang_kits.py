"""SGLang's kits, classes of tests that ask a URL, against one server."""
import unittest

import openai
from launch import MODEL, free_port, launch
from sglang.test.kits.abort_timeout_kit import AbortAllMixin
from sglang.test.kits.anthropic_messages_kit import AnthropicMessagesMixin
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin
from sglang.test.kits.basic_scheduler_stress_kit import BasicSchedulerStressMixin
from sglang.test.kits.ebnf_constrained_kit import EBNFConstrainedMixin
from sglang.test.kits.json_constrained_kit import JSONConstrainedMixin
from sglang.test.kits.json_mode_kit import JSONModeMixin
from sglang.test.kits.matched_stop_kit import MatchedStopMixin
from sglang.test.kits.regex_constrained_kit import RegexConstrainedMixin


class TestKits(AbortAllMixin, AnthropicMessagesMixin, BasicAPIContractMixin, BasicDecodeCorrectnessMixin, BasicSchedulerStressMixin, EBNFConstrainedMixin,
               JSONConstrainedMixin, JSONModeMixin, MatchedStopMixin, RegexConstrainedMixin, unittest.TestCase):
    model, api_key = MODEL, "none"

    @classmethod
    def setUpClass(cls):
        port = free_port()
        cls.base_url = f"http://127.0.0.1:{port}"
        cls.process = launch(port, [MODEL, "default"], 2048)
        cls.client = openai.Client(api_key="none", base_url=f"{cls.base_url}/v1")

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait()
