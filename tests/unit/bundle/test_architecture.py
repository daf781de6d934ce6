from dragoman_service.bundle.architecture import attention_tensors, graph_tensors, layer_names


def test_layer_names_go_layer_by_layer() -> None:
    assert layer_names(("key", "value"), 2) == ("key.0", "value.0", "key.1", "value.1")


def test_only_keys_values_and_the_mask_are_halves() -> None:
    tensors = graph_tensors(1, "float16")

    types = {**tensors.encoder.outputs, **tensors.decoder.inputs, **tensors.decoder.outputs}
    halves = {name.partition(".")[0] for name, element_type in types.items() if element_type == "float16"}
    assert halves == {"cross_key", "cross_value", "self_key_pool", "self_value_pool", "ancestor_mask"}
    assert types["log_probs"] == "float32"
    assert set(attention_tensors(1, "float16").outputs.values()) == {"float32"}


def test_the_attention_graph_takes_no_values_of_the_last_layer() -> None:
    tensors = attention_tensors(2, "float32")

    assert "cross_value.0" in tensors.inputs
    assert "cross_key.1" in tensors.inputs
    assert "cross_value.1" not in tensors.inputs
    assert tuple(tensors.outputs) == ("cross_attention.0", "cross_attention.1")
