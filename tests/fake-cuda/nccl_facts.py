#!/usr/bin/env python3
"""Compares what crates/train/src/distributed/nccl.rs says of NCCL with NVIDIA's header and library, which need no GPU for that:

    pip download --no-deps nvidia-nccl-cu12 && unzip nvidia_nccl_cu12-*.whl && tests/fake-cuda/nccl_facts.py nvidia/nccl

Signatures and constants are those of include/nccl.h; lib/libnccl.so.2 has the functions and tells its version.
"""
import ctypes
import pathlib
import re
import sys

# Types of Rust, and those of C that are passed in the same way. Enumerations are ints.
TYPES = {
    "c_int": {"int", "ncclDataType_t", "ncclRedOp_t", "ncclResult_t"},
    "*mut c_int": {"int*", "ncclResult_t*"},
    "usize": {"size_t"},
    "*const c_void": {"const void*"},
    "*mut c_void": {"void*"},
    "*const c_char": {"const char*"},
    "Comm": {"ncclComm_t"},
    "*mut Comm": {"ncclComm_t*"},
    "UniqueId": {"ncclUniqueId"},
    "*mut UniqueId": {"ncclUniqueId*"},
    "sys::CUstream": {"cudaStream_t"},
}


def main():
    folder = pathlib.Path(sys.argv[1])
    source = (pathlib.Path(__file__).parents[2] / "crates/train/src/distributed/nccl.rs").read_text()
    header = re.sub(r"/\*.*?\*/", " ", (folder / "include/nccl.h").read_text(), flags=re.S)
    library = ctypes.CDLL(str(folder / "lib/libnccl.so.2"))

    def number(pattern, text):
        found = re.search(pattern, text)
        assert found, pattern
        return int(found.group(1))

    facts = [("FLOAT32: c_int", "ncclFloat32"), ("SUM: c_int", "ncclSum"), ("CUDA_ERROR: c_int", "ncclUnhandledCudaError")]
    facts += [("SYSTEM_ERROR: c_int", "ncclSystemError"), ("REMOTE_ERROR: c_int", "ncclRemoteError")]
    facts += [("IN_PROGRESS: c_int", "ncclInProgress")]
    facts = [(number(rf"const {ours} = (\d+);", source), number(rf"\b{theirs}\s*=\s*(\d+)", header)) for ours, theirs in facts]
    facts += [(number(r"struct UniqueId\(\[u8; (\d+)\]\)", source), number(r"NCCL_UNIQUE_ID_BYTES (\d+)", header))]
    facts += [(0, number(r"ncclSuccess\s*=\s*(\d+)", header))]
    assert all(ours == theirs for ours, theirs in facts), facts

    signatures = dict(re.findall(r"type (\w+) = unsafe extern \"C\" fn\((.*?\) -> .*?);", source))
    functions = re.findall(r"function!\((\w+), b\"(\w+)\"\)", source)
    assert len(functions) >= 6, functions
    for kind, name in functions:
        getattr(library, name)
        arguments, result = signatures[kind].split(") -> ")
        found = re.search(rf"^\s*((?:const )?\w+\s*\**)\s*{name}\(([^)]*)\)", header, flags=re.M)
        assert found, name
        # `const void* sent` without the name
        theirs = [re.sub(r"\s*(\*?)\s*\w+$", r"\1", one.strip()) for one in found.group(2).split(",")]
        theirs = [one.replace(" *", "*") for one in theirs] + [found.group(1).strip()]
        ours = [one.strip() for one in arguments.split(",")] + [result]
        assert len(ours) == len(theirs) and all(c in TYPES[rust] for rust, c in zip(ours, theirs)), (name, ours, theirs)

    version = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value == number(r"NCCL_VERSION_CODE (\d+)", header) >= number(r"const OLDEST: c_int = (\d+);", source)
    library.ncclGetErrorString.restype = ctypes.c_char_p
    texts = [library.ncclGetErrorString(code).decode() for code in range(7)]
    print(f"NCCL {version.value}: {len(functions)} functions and {len(facts)} constants agree; {texts}")


main()
