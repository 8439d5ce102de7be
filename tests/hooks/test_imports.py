import json
import subprocess
import sys


def loaded_by(code):
    code += "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])} | set(
        json.loads(done.stdout.splitlines()[-1])
    )


def test_the_pure_parts_load_neither_mindspore_nor_grpc():
    modules = loaded_by(
        "from mindeval.hooks import StoppingRule, ModelFiles, ExportGraph, Summary\n"
        "import mindeval.hooks.session, mindeval.hooks.staging, mindeval.hooks.settings"
    )
    assert not modules & {"mindspore", "grpc", "google.protobuf", "blake3", "mindeval.v1", "mindeval.client"}


def test_the_callback_loads_no_grpc_and_no_protobuf_of_ours():
    # MindSpore brings google.protobuf itself; what counts is that we add none, and load it no earlier.
    before = loaded_by("import mindspore, mindspore.train")
    modules = loaded_by("from mindeval.hooks import RemoteEvaluation")
    assert "mindspore" in modules
    assert not modules & {"grpc", "blake3", "mindeval.v1", "mindeval.client"}
    assert ("google.protobuf" in modules) == ("google.protobuf" in before)


def test_an_unknown_name_is_an_attribute_error():
    import mindeval.hooks

    assert not hasattr(mindeval.hooks, "Nothing")
    assert set(mindeval.hooks.__all__) >= {"RemoteEvaluation", "ExportGraph", "ModelFiles", "StoppingRule"}
