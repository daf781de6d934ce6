from loadtests.benchmarks.engine import sets_in_log
from loadtests.benchmarks.report import bench_table, engine_line

_SPEED = {
    "instruction_set": "avx512",
    "ctranslate2": "AVX2, MKL",
    "peak_gmacs_per_s": 400.0,
    "products_gmacs_per_s": 300.4,
    "share_of_peak": 0.751,
    "lone_step_us": 70.4,
    "lone_gb_per_s": 55.71,
    "read_gb_per_s": 15.28,
}


def test_instruction_set_and_library_are_read_from_the_log_of_ctranslate2() -> None:
    log = "[info]  - Selected ISA: AVX512\n[info]  - GEMM_S8 backend: DNNL (packed: false, u8s8 preferred: true)\n"

    assert sets_in_log(log) == "AVX512, DNNL"
    assert sets_in_log("") is None


def test_engine_line_has_instruction_sets_and_rounded_figures() -> None:
    assert engine_line("base", _SPEED) == (
        'bench engine=native model=base instruction_set=avx512 ctranslate2="AVX2, MKL" peak_gmacs_per_s=400 '
        "products_gmacs_per_s=300 share_of_peak=0.75 lone_step_us=70 lone_gb_per_s=55.7 read_gb_per_s=15.3"
    )


def test_table_has_the_build_of_python_and_the_engine() -> None:
    machine = {
        "cpu": "a CPU",
        "cores": 2,
        "instruction_sets": ["avx2"],
        "python": "3.11.2",
        "python_has_pgo": False,
        "versions": {"numpy": "2.0"},
        "date": "2026-01-01",
    }

    table = bench_table({"machine": machine, "command": "make bench", "engine": {"base": _SPEED}, "cases": []})

    assert "Python 3.11.2 without PGO" in table
    assert "| base | avx512 | AVX2, MKL | 300 GMAC/s, 75 % of" in table
