"""Real models' shapes, cut in layers so that random weights of them fit into a small machine's memory: name -> config in configs/models/, what is merged
over it. Experts, heads and vocabulary stay as they are; a family has the kinds of layers that it has, and no layer for drafts."""
LAYERS = {
    "v2-lite": ("deepseek-v2-lite.json", {"num_hidden_layers": 6}),
    "v3": ("deepseek-v3.json", {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}),
    "v3.2": ("deepseek-v3.2.json", {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}),
    "glm-5": ("glm-5.json", {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}),
    "kimi-k2.5": ("kimi-k2.5.json", {"text_config": {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}}),
    "qwen3-30b": ("qwen3-30b-a3b.json", {"num_hidden_layers": 8}),
    "qwen3-next": ("qwen3-next-80b-a3b.json", {"num_hidden_layers": 4, "num_nextn_predict_layers": 0}),
    "qwen3.5-35b": ("qwen3.5-35b-a3b.json", {"text_config": {"num_hidden_layers": 8, "mtp_num_hidden_layers": 0}}),
    "kimi-linear": ("kimi-linear-48b-a3b.json", {"num_hidden_layers": 5, "linear_attn_config": {"kda_layers": [1, 2, 3, 5], "full_attn_layers": [4]}}),
    "v4-flash": ("deepseek-v4-flash.json", {"num_hidden_layers": 4}),
    "glm-5.3": ("glm-5.3-flash.json", {"text_config": {"num_hidden_layers": 4, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}}),
    "glm-air": ("glm-4.5-air.json", {"num_hidden_layers": 4, "num_nextn_predict_layers": 0}),
    "glm-flash": ("glm-4.7-flash.json", {"num_hidden_layers": 6, "num_nextn_predict_layers": 0}),
    "minimax-m2": ("minimax-m2.json", {"num_hidden_layers": 4}),
    "gpt-oss": ("gpt-oss-20b.json", {"num_hidden_layers": 8, "layer_types": ["sliding_attention", "full_attention"] * 4}),
}
