"""What people give as --model-path in place of a model's folder is told at once, before the machine is measured; and `--check` opens the model."""
import json
import os
import shutil
import socket
import subprocess

from program import MODEL, TANDEM, FolderTest, tandem


class ModelFolder(FolderTest):
    def made(self, name, **files):
        """A folder with files of these contents."""
        path = self.path(name)
        os.makedirs(path)
        for file, content in files.items():
            with open(os.path.join(path, file.replace("__", ".")), "wb") as f:
                f.write(content)
        return path

    def demo(self, *without):
        """A copy of the demo model, by links, without some files."""
        path = self.path("demo")
        os.makedirs(path)
        for file in os.listdir(MODEL):
            if file not in without:
                os.symlink(os.path.join(MODEL, file), os.path.join(path, file))
        return path

    def refused(self, path, *parts, commands=(("launch_server", "--port", "0"), ("perplexity", "--text", os.path.join(MODEL, "valid.txt")),
                                              ("quantize", "--output", "out"), ("bench", "decode"), ("bench", "load"))):
        for command in commands:
            with self.subTest(path=path, command=command[0]):
                p = tandem(*command, "--model-path", path, cwd=self.folder)
                self.assertEqual(p.returncode, 1, p.stderr)
                self.assertEqual(p.stderr.count("\n"), 1, p.stderr)  # nothing was measured or logged before
                for part in (path, *parts):
                    self.assertIn(part, p.stderr)

    def test_a_name_on_a_hub(self):
        self.refused("deepseek-ai/DeepSeek-V2-Lite-Chat", "no such folder", "hf download deepseek-ai/DeepSeek-V2-Lite-Chat --local-dir",
                     "modelscope download --model deepseek-ai/DeepSeek-V2-Lite-Chat --local_dir")

    def test_a_folder_that_is_missing(self):
        for path in ("/models/DeepSeek-R1", "./a/b", "DeepSeek-R1"):
            self.refused(path, "no such folder")
            self.assertNotIn("hf download", tandem("launch_server", "--model-path", path).stderr)

    def test_gguf(self):
        folder = self.made("gguf", model__gguf=b"GGUF\3\0\0\0")
        self.refused(folder, "has GGUF files", "safetensors")
        self.refused(os.path.join(folder, "model.gguf"), "is a GGUF file", "safetensors")
        renamed = self.made("renamed", weights__bin=b"GGUF\3\0\0\0")
        self.refused(os.path.join(renamed, "weights.bin"), "is a GGUF file")
        p = tandem("plan", "--model-path", os.path.join(folder, "model.gguf"))
        self.assertEqual(p.returncode, 1)
        self.assertIn("is a GGUF file", p.stderr)

    def test_a_pipe_is_not_waited_for(self):
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            folder = self.demo(name)
            os.mkfifo(os.path.join(folder, name))
            p = tandem("launch_server", "--check", "--model-path", folder)
            self.assertEqual(p.returncode, 1)
            self.assertIn("not a regular file", p.stderr)
            shutil.rmtree(folder)
        pipe = self.path("template")
        os.mkfifo(pipe)
        p = tandem("launch_server", "--check", "--model-path", MODEL, "--chat-template", pipe)
        self.assertEqual(p.returncode, 1)
        self.assertIn(f"chat-template: {pipe} is not a regular file", p.stderr)

    def test_the_tokenizer_of_another_model(self):
        p = tandem("launch_server", "--check", "--model-path", MODEL, "--load-format", "dummy", "--json-model-override-args", '{"vocab_size":4000}')
        self.assertEqual(p.returncode, 1)
        self.assertIn("has ids up to 4095, but the model's vocab_size is 4000", p.stderr)

    def test_other_folders_and_files(self):
        self.refused(self.made("empty"), "has no config.json")
        cache = self.made("models--org--name")
        os.makedirs(os.path.join(cache, "snapshots"))
        self.refused(cache, "it is a hub's cache", "/snapshots")
        for command in (("launch_server",), ("quantize", "--output", self.path("out")), ("bench", "load")):
            p = tandem(*command, "--model-path", os.path.join(MODEL, "config.json"))
            self.assertIn("is not a folder", p.stderr)

    def test_a_model_is_called_as_its_folder(self):
        for path in (".", "./", "../tale-v3-14m/", "../tale-v3-14m/."):
            p = subprocess.Popen([TANDEM, "launch_server", "--model-path", path, "--port", "0", "--skip-server-warmup"], cwd=MODEL, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True)
            self.assertTrue(p.stdout.readline().startswith("tandem: serving tale-v3-14m at "), path)
            p.terminate()
            self.assertEqual(p.wait(60), 0)
            p.stdout.close()

    def test_check_opens_the_model(self):
        p = tandem("launch_server", "--check", "--model-path", MODEL)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual(json.loads(p.stdout)["model_path"], MODEL)

    def test_check_looks_at_the_address(self):
        """As a start does: others are let in with a key, or on somebody's word. The port may be the running server's."""
        for host, part in (("0.0.0.0", "--api-key KEY, or --allow-no-key"), ("::", "--api-key KEY, or --allow-no-key"), ("203.0.113.1", "cannot be bound")):
            p = tandem("launch_server", "--check", "--model-path", MODEL, "--host", host)
            self.assertEqual(p.returncode, 1, host)
            self.assertIn(part, p.stderr)
        with socket.create_server(("127.0.0.1", 0)) as busy:
            for flags in (("--host", "0.0.0.0", "--api-key", "secret"), ("--host", "0.0.0.0", "--allow-no-key"), ("--port", str(busy.getsockname()[1]))):
                p = tandem("launch_server", "--check", "--model-path", MODEL, *flags)
                self.assertEqual((p.returncode, p.stderr), (0, ""), flags)

    def test_check_finds_what_a_start_would(self):
        weights = [file for file in os.listdir(MODEL) if file.endswith(".safetensors")]
        p = tandem("launch_server", "--check", "--model-path", self.demo(*weights))
        self.assertEqual(p.returncode, 1)
        self.assertIn("safetensors", p.stderr)
        shutil.rmtree(self.path("demo"))
        p = tandem("launch_server", "--check", "--model-path", self.demo("tokenizer.json"))
        self.assertEqual(p.returncode, 1)
        self.assertIn("tokenizer.json", p.stderr)
        for flags, part in ((("--tensor-parallel-size", "7"), "tensor-parallel-size"),
                            (("--json-model-override-args", '{"hidden_size": 999}'), "999"),
                            (("--chat-template", "/no/such.jinja"), "/no/such.jinja")):
            p = tandem("launch_server", "--check", "--model-path", MODEL, *flags)
            self.assertEqual(p.returncode, 1, flags)
            self.assertIn(part, p.stderr)
        p = tandem("launch_server", "--check", "--model-path", "no/model")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(json.loads(p.stdout)["model_path"], "no/model")  # what the flags amount to is told all the same
