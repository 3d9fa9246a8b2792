"""`tandem eval` on the demo model. Choices are compared with scripts/golden/make_perplexity.py, and texts with the greedy ones that came with the
model. Also few-shot prompts, requests that run together, and refusals."""
import json
import os

from program import MODEL, SOURCE, FolderTest, tandem

NONE = ("--quantization", "none")
with open(os.path.join(SOURCE, "tests/data/perplexity/expected.json")) as f:
    CHOICES = json.load(f)["choices"]
with open(os.path.join(MODEL, "reference.json")) as f:
    GREEDY = json.load(f)  # prompt, greedy_text


class Eval(FolderTest):
    def task(self, *items, name="task.jsonl"):
        return self.write(name, "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))

    def run_eval(self, task, *args, **more):
        return tandem("eval", "--model-path", MODEL, "--task", task, *args, **more)

    def evaluate(self, task, *args):
        """The result, and the items' lines."""
        output = self.path("output.jsonl")
        p = self.run_eval(task, *args, "--json", "--output", output)
        self.assertEqual(p.returncode, 0, p.stderr)
        with open(output) as f:
            return json.loads(p.stdout), [json.loads(line) for line in f]

    def test_choices(self):
        result, lines = self.evaluate(self.task(*CHOICES), *NONE, "--prompt", "{question}")
        right = []
        for line, want in zip(lines, CHOICES):
            for got, score in zip(line["scores"], want["scores"]):
                self.assertAlmostEqual(got, score, delta=1e-3)
            best = max(range(len(want["scores"])), key=want["scores"].__getitem__)
            by_byte = max(range(len(want["scores"])), key=lambda i: want["scores"][i] / len(want["choices"][i]))
            answer = {0: 0, "B": 1, "woman": 1}[want["answer"]]
            self.assertEqual((line["expected"], line["choice"], line["choice_normalised"], line["correct"]), (answer, best, by_byte, best == answer))
            right.append((best == answer, by_byte == answer))
        self.assertEqual((result["kind"], result["items"], result["generated_tokens"]), ("choice", 3, 0))
        self.assertAlmostEqual(result["accuracy"], sum(a for a, _ in right) / 3)
        self.assertAlmostEqual(result["accuracy_normalised"], sum(b for _, b in right) / 3)
        self.assertTrue(any(a for a, _ in right) and not all(a for a, _ in right), "the task should be neither all right nor all wrong")
        self.assertAlmostEqual(result["accuracy_error"], (result["accuracy"] * (1 - result["accuracy"]) / 2) ** 0.5)

    def test_complete(self):
        items = [{"task_id": "a/%d" % i, "prompt": x["prompt"]} for i, x in enumerate(GREEDY[:2])]
        result, lines = self.evaluate(self.task(*items), *NONE, "--max-tokens", "24", "--stop", "\\nno such text")
        self.assertEqual((result["kind"], result["items"], result["generated_tokens"]), ("complete", 2, 48))
        self.assertNotIn("accuracy", result)
        for line, item, x in zip(lines, items, GREEDY):
            self.assertEqual(line["task_id"], item["task_id"])
            self.assertGreater(len(line["completion"]), 40)
            self.assertTrue(x["greedy_text"].startswith(line["completion"]), line)

    def test_chat(self):
        _, lines = self.evaluate(self.task({"prompt": "Tell me a story about a fox and a crow."}), *NONE, "--chat", "--max-tokens", "24")
        self.assertTrue(GREEDY[2]["greedy_text"].startswith(lines[0]["completion"]), lines)

    def test_match(self):
        prompt = GREEDY[0]["prompt"]
        self.assertTrue(GREEDY[0]["greedy_text"].startswith(" The eldest was very fond of his wife"))
        items = [{"question": prompt, "answer": "his"}, {"question": prompt, "answer": "her"}, {"question": GREEDY[1]["prompt"], "answer": "his"}]
        result, lines = self.evaluate(self.task(*items), *NONE, "--prompt", "{question}", "--max-tokens", "16", "--extract", "regex:fond of (\\w+)")
        self.assertEqual([(x["item"], x["expected"], x["answer"], x["correct"]) for x in lines],
                         [(0, "his", "his", True), (1, "her", "his", False), (2, "his", None, False)])
        self.assertEqual((result["kind"], result["no_answer"]), ("match", 1))
        self.assertAlmostEqual(result["accuracy"], 1 / 3)
        # a stop string ends the text before it; the answer may be all of it; --limit
        result, lines = self.evaluate(self.task({"question": prompt, "answer": "The eldest was"}, *items), *NONE, "--prompt", "{question}",
                                      "--stop", " very", "--extract", "whole", "--limit", "1")
        self.assertEqual((result["items"], result["accuracy"], result["accuracy_error"], lines[0]["completion"]), (1, 1, None, " The eldest was"))
        # the default prompt, and last-number on both sides
        result, lines = self.evaluate(self.task({"question": "How many?", "answer": "He has 1,000 + 200.\n#### 1,200"}), "--max-tokens", "4")
        self.assertEqual(lines[0]["expected"], "1200")

    def test_shots(self):
        items = [{"question": "Who came?", "answer": "The king."}, {"question": "And then?", "answer": "The queen."}, {"question": "Who else?", "answer": "x"}]
        result, lines = self.evaluate(self.task(*items), "--shots", "1", "--max-tokens", "12")
        self.assertEqual(([x["item"] for x in lines], result["shots"], result["items"]), ([1, 2], 1, 2))
        whole = "Question: Who came?\nAnswer: The king.\n\nQuestion: And then?\nAnswer:"
        _, direct = self.evaluate(self.task({"prompt": whole}), "--max-tokens", "12", "--stop", "\\n\\n", "--stop", "Question:")
        self.assertEqual(lines[0]["completion"], direct[0]["completion"])
        other = self.task(items[0], name="other.jsonl")
        _, moved = self.evaluate(self.task(*items[1:]), "--shots", "1", "--shots-from", other, "--max-tokens", "12")
        self.assertEqual([x["completion"] for x in moved], [x["completion"] for x in lines])

    def test_names_that_are_not_utf8(self):
        path = os.path.join(os.fsencode(self.folder), b"t\xff.jsonl")
        os.rename(self.task({"prompt": "Once"}), path)
        result, _ = self.evaluate(path, "--max-tokens", "2")
        self.assertTrue(result["task"].endswith("/t?.jsonl"), result)

    def test_company_does_not_matter(self):
        items = [{"question": x["prompt"][:n], "answer": "1"} for x in GREEDY for n in range(6, 22, 4)]
        results = [self.evaluate(self.task(*items), "--max-tokens", "10", "--max-running-requests", n)[1] for n in ("1", "16")]
        self.assertEqual(*results)
        self.assertEqual(len(results[0]), len(items))

    def test_refused_tasks(self):
        good, match = {"question": "q", "choices": ["a", "b"], "answer": 0}, {"question": "q", "answer": "1"}
        for items, args, said in [
                ([], (), "has no items"), (["{"], (), "line 1: "), ([good, "[]"], (), "line 2: it is not an object"),
                ([{**good, "choices": ["a"]}], (), '"choices" must be a list of 2 to 64 texts'), ([{**good, "choices": ["a", 5]}], (), "choice 1 is not a text"),
                ([{**good, "answer": 2}], (), '"answer" must be'), ([{**good, "answer": -1}], (), '"answer" must be'),
                ([{**good, "answer": "C"}], (), '"answer" must be'), ([good, {"question": "q"}], (), "line 2: \"choices\""),
                ([{"question": "q", "answer": 5}], (), 'it has no text "answer"'), ([{"answer": "a"}], (), 'the prompt needs a text "question"'),
                ([{"text": "a"}], (), 'the prompt needs a text "prompt"'), ([good], ("--shots", "1"), "no item is left"),
                ([good], ("--shots", "2"), "there are not so many items"), ([{"prompt": "a"}], ("--shots", "1"), "items to complete have no answers"),
                ([match], ("--extract", "last-word"), "extract must be"), ([match], ("--extract", "regex:("), "the pattern of extract"),
                ([good], ("--extract", "whole"), "choices are only scored"), ([good], ("--max-tokens", "5"), "choices are only scored"),
                ([good], ("--stop", "x"), "choices are only scored"), ([{"prompt": "a"}], ("--extract", "whole"), "items to complete have none"),
                ([match, {"answer": "1"}], (), 'item 1: the prompt needs a text "question"'), ([match], ("--shots-from", "/nonexistent"), "give shots, their number"),
                ([{"prompt": "word " * 400}], ("--context-length", "256"), "the context length is 256"),
                ([{"question": "q", "choices": ["a", "b"], "answer": 0, "text": "t"}, good], ("--shots", "1", "--prompt", "{topic}"), 'item 0: the prompt needs a text "topic"'),
                ([good], ("--output", "/nonexistent/x"), "cannot write /nonexistent/x")]:
            with self.subTest(said=said):
                p = self.run_eval(self.task(*items), *args)
                self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
                last = p.stderr.splitlines()[-1]
                self.assertTrue(last.startswith("tandem eval: "), p.stderr)
                self.assertIn(said, last)
        self.assertIn("cannot open /nonexistent.jsonl", self.run_eval("/nonexistent.jsonl").stderr)
        task = self.task(match)
        self.assertIn("task.jsonl would be overwritten", self.run_eval(task, "--output", task).stderr)
        self.assertGreater(os.path.getsize(task), 0)

    def test_a_full_disk_is_told(self):
        with open("/dev/full", "w") as full:
            p = self.run_eval(self.task(*CHOICES), *NONE, "--prompt", "{question}", stdout=full)
        self.assertEqual((p.returncode, p.stderr.splitlines()[-1]), (1, "tandem eval: cannot write standard output"))

    def test_refused_flags(self):
        for args, said in [(("--kind", "guess"), "--kind must be one of auto, choice, match, complete, not 'guess'"), (("--shots", "x"), "--shots needs a whole number"),
                           (("--max-tokens", "0"), "--max-tokens must be between 1 and 1048576"),
                           (("more",), "'more' is not a flag"), (17 * ("--stop", "x"), "at most 16 --stop")]:
            with self.subTest(args=args):
                p = self.run_eval("x", *args)
                self.assertEqual((p.returncode, p.stdout), (2, ""))
                self.assertIn("tandem eval: " + said, p.stderr)
