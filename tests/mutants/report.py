"""Bugs of the report: pages that break out, hide, or mislead."""

from tests.mutants.mutant import Mutant

PAGE = "tests/unit/report/test_page.py"
ROLLOUTS = "tests/unit/report/test_rollouts.py"
HEALTH = "tests/unit/report/test_health.py"
HISTORY = "tests/unit/report/test_history.py"
RUN = "tests/unit/report/test_run.py"
BROWSER = "tests/system/test_report_browser.py"
TRAIN = "tests/system/test_report.py"

MUTANTS = [
    Mutant(
        pitfall="38",
        file="report/page.py",
        old='"TITLE": html.escape(page.title),',
        new='"TITLE": page.title,',
        test=f"{PAGE}::test_pitfall_38_texts_in_data_and_title_cannot_break_out",
    ),
    Mutant(
        pitfall="38",
        file="report/page.py",
        old="script-src {_hash(script)};",
        new="script-src 'unsafe-inline';",
        test=f"{PAGE}::test_pitfall_38_only_the_pages_own_script_and_style_may_run",
    ),
    Mutant(
        pitfall="38",
        file="report/assets/base.js",
        old="node.append(...children.flat().filter((child) => child !== null && child !== undefined));",
        new="node.insertAdjacentHTML('beforeend', children.flat().join(''));",
        test=f"{PAGE}::test_pitfall_38_no_script_makes_code_or_markup_out_of_text",
    ),
    Mutant(
        pitfall="38",
        file="report/assets/episode.js",
        old='el("pre", null, text))',
        new='Object.assign(el("pre"), {innerHTML: text}))',
        test=f"{BROWSER}::test_pitfall_38_markup_in_what_a_model_wrote_stays_text",
        needs="playwright",
    ),
    Mutant(
        pitfall="38",
        file="report/rollouts.py",
        old="return [place * count // quota for place in range(quota)]",
        new="return list(range(quota))",
        test=f"{ROLLOUTS}::test_pitfall_38_a_sample_has_every_step_and_says_what_is_left_out",
    ),
    Mutant(
        pitfall="38",
        file="report/rollouts.py",
        old="total=sum(counts)",
        new="total=packer.count",
        test=f"{ROLLOUTS}::test_pitfall_38_a_sample_has_every_step_and_says_what_is_left_out",
    ),
    Mutant(
        pitfall="38",
        file="report/run.py",
        old="while packed.size > budget and packed.kept > 1:",
        new="while False:",
        test=f"{RUN}::test_pitfall_38_a_page_above_the_limits_is_a_sample_that_says_so",
    ),
    Mutant(
        pitfall="21",
        file="report/rollouts.py",
        old="None if a is None or b is None else a - b for a, b in pairs], 1e6)",
        new="None if a is None or b is None else round(a, 4) - round(b, 4) for a, b in pairs], 1e6)",
        test=f"{ROLLOUTS}::test_pitfall_21_a_ratio_near_one_is_not_rounded_to_one",
    ),
    Mutant(
        pitfall="21",
        file="report/health.py",
        old="lambda x: abs(x - 1) > 0.1",
        new="lambda x: x > 1.1",
        test=f"{HEALTH}::test_pitfall_21_what_the_table_of_metrics_calls_wrong_is_worth_a_look",
    ),
    Mutant(
        pitfall="5",
        file="report/rollouts.py",
        old="    if row.loss_mask and row.loss_mask[0]:\n        runs.insert(0, 0)\n",
        new="",
        test=f"{ROLLOUTS}::test_pitfall_05_masks_come_back_as_they_were",
    ),
    Mutant(
        pitfall="14",
        file="report/health.py",
        old='state = "wrong" if texts else',
        new='state = "wrong" if len(texts) > 1 else',
        test=f"{HEALTH}::test_pitfall_14_a_hint_of_the_console_is_wrong_here_with_its_sentence",
    ),
    Mutant(
        pitfall="16",
        file="report/health.py",
        old="if not math.isfinite(values[-1]):",
        new="if math.isinf(values[-1]):",
        test=f"{HEALTH}::test_pitfall_16_a_number_that_is_none_any_more_is_said_at_once",
    ),
    Mutant(
        pitfall="37",
        file="report/history.py",
        old='damaged.append(f"{path}, line {number}, is damaged and left out ({error}).")',
        new="break",
        test=f"{HISTORY}::test_pitfall_37_damaged_lines_are_named_and_the_rest_is_used",
    ),
    Mutant(
        pitfall="37",
        file="report/rollouts.py",
        old="except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError",
        new="except OSError as error:",
        test=f"{ROLLOUTS}::test_pitfall_37_damaged_files_and_lines_are_named_and_the_rest_is_used",
    ),
    Mutant(
        pitfall="37",
        file="report/history.py",
        old="""lines = path.read_bytes().split(b"\\n")[:-1]  # what""",
        new="""lines = path.read_bytes().split(b"\\n")[:2]  # what""",
        test=f"{RUN}::test_pitfall_37_a_run_that_goes_on_is_written_anew",
    ),
    Mutant(
        pitfall="37",
        file="build/train.py",
        old="""    except Exception as error:
        console.note(f"warning: no report""",
        new="""    except ValueError as error:
        console.note(f"warning: no report""",
        test=f"{TRAIN}::test_pitfall_37_a_report_that_cannot_be_written_fails_no_run",
    ),
]
