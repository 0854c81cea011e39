"""The parts of bench/side_by_side.py and bench/backward_side_by_side.py that need no GPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import backward_page  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import summary  # noqa: E402


def row(key, section="forward", **more):
    base = {
        "section": section, "key": key, "name": "full", "head_dim": 128, "heads": 16, "batch": 2, "seq": 8192,
        "causal": False, "live_share": 1.0, "flops": 1e12, "us": {"Attune": 1600.0, "cuDNN": 2000.0, "FA2": 4000.0},
        "failures": {}, "source": "measured"
    }
    return {**base, **more}


def results(*rows):
    return {
        "environment": {"date": "D", "gpu": "G", "driver": "R", "cuda": "C", "torch": "T", "attune": "A",
                        "command": "python3 X --cache c.db --json /somewhere/r.json --out=/p", "matmul_tflops": 700, "copy_tb_per_s": 4.2},
        "rows": list(rows)
    }


FA3 = page.reference(ROOT)


class Problems(unittest.TestCase):
    def test_keys_are_unique_and_specs_exist(self):
        found = problems.all_problems()
        self.assertEqual(len({p.key for p in found}), len(found))
        for problem in found:
            self.assertTrue(os.path.isfile(os.path.join(ROOT, problem.spec)), problem.spec)

    def test_every_shape_is_one_that_its_spec_tunes(self):
        for problem in problems.all_problems():
            with open(os.path.join(ROOT, problem.spec), encoding="utf-8") as file:
                text = file.read()
            shape = rf"batch: {problem.batch}, heads: {problem.heads},.* q_len: {problem.seq}\b"
            self.assertRegex(text, shape, problem.key)

    def test_masks_on_small_indices(self):
        masks = {p.name: p.mask for p in problems.custom_problems()}
        tensors = {"doc": {(0, 5): 1, (0, 4): 1, (0, 2): 0}}
        self.assertTrue(masks["causal"](0, 0, 5, 5, {}))
        self.assertFalse(masks["causal"](0, 0, 4, 5, {}))
        self.assertFalse(masks["sliding1024"](0, 0, 1024, 0, {}))
        self.assertTrue(masks["sink4_window1024"](0, 0, 5000, 3, {}))
        self.assertTrue(masks["prefix1024"](0, 0, 0, 1023, {}))
        self.assertTrue(masks["doc_causal"](0, 0, 5, 4, tensors))
        self.assertFalse(masks["doc_causal"](0, 0, 5, 2, tensors))
        self.assertTrue(masks["dilated8"](0, 0, 17, 1, {}))
        self.assertFalse(masks["natten2d_k13"](0, 0, 7, 0, {}))
        self.assertTrue(masks["natten2d_k13"](0, 0, 6 * 128, 0, {}))

    def test_flops_follow_the_conventions(self):
        causal = next(p for p in problems.forward_problems() if p.causal and p.head_dim == 128 and p.seq == 8192)
        self.assertEqual(problems.flops(causal, problems.table_elements(causal)), 4 * 2 * 16 * 8192**2 * 128 / 2)

    def test_flops_of_two_head_dims_add_up(self):
        mixed = next(p for p in problems.dims_problems() if p.head_dim_v == 128 and not p.causal and p.seq == 8192)
        self.assertEqual(mixed.key, "dims/full/d192_128/s8192")
        self.assertEqual(problems.flops(mixed, problems.table_elements(mixed)), 2 * 2 * 13 * 8192**2 * (192 + 128))

    def test_other_head_dims_have_about_the_columns_of_the_forward_table(self):
        for problem in problems.dims_problems():
            columns = problem.heads * (problem.head_dim + problem.head_dim_v) / 2
            self.assertLess(abs(columns - 2048), 0.04 * 2048, problem.key)

    def test_other_head_dims_bring_what_their_line_goes_through(self):
        keys = [p.key for p in problems.all_problems(["dims/causal/d192_128/s2048", "dims/full/d80/s8192"])]
        self.assertEqual(keys, [
            "forward/full/d64/s8192", "forward/full/d128/s8192", "forward/causal/d128/s2048",
            "forward/causal/d256/s2048", "dims/full/d80/s8192", "dims/causal/d192_128/s2048"
        ])

    def test_only_and_quick(self):
        self.assertEqual([p.key for p in problems.all_problems(["softcap_full"])], ["custom/softcap_full/d128/s8192"])
        self.assertLess(len(problems.all_problems(quick=True)), 12)

    def test_median(self):
        self.assertEqual(problems.median([3, 1, 2]), 2)
        self.assertEqual(problems.median([4, 1, 2, 3]), 2.5)


class Page(unittest.TestCase):
    def test_section_is_appended_then_replaced_and_the_rest_kept(self):
        first = page.render("# Speed\n\nWords.\n", results(row("a")), FA3)
        self.assertIn("# Speed\n\nWords.\n", first)
        self.assertIn("**625**", first)
        second = page.render(first, results(row("a", us={"Attune": 1000.0})), FA3)
        self.assertIn("**1000**", second)
        self.assertNotIn("**625**", second)
        self.assertEqual(second.count("<!-- forward:begin -->"), 1)

    def test_the_ratio_is_against_the_best_peer(self):
        self.assertIn("| 1.25 |", page.render("", results(row("a")), FA3))

    def test_fa3_is_a_reference_column_with_its_provenance(self):
        text = page.render("", results(row("a")), FA3)
        self.assertIn("| 667 |", text)
        self.assertIn(FA3["provenance"], " ".join(text.split()))

    def test_untuned_and_failed_contestants_are_told(self):
        tuned_and_not = results(row("a", source="model"), row("b", us={}, failures={"Attune": "boom"}), row("c"))
        text = page.render("", tuned_and_not, FA3)
        self.assertIn("(untuned)", text)
        self.assertIn("- b: Attune: boom", text)

    def test_where_nothing_is_tuned_it_is_said_once(self):
        text = page.render("", results(row("a", source="model"), row("b", source="model")), FA3)
        self.assertNotIn("(untuned)", text)
        self.assertIn("nothing is tuned", text)
        self.assertNotIn("nothing is tuned", page.render("", results(row("a"), row("b", source="model")), FA3))

    def test_backward_rows_go_to_their_sections(self):
        rows = [["dense/d64/full/512", "490", "351", "FA3 529 us (1.08), cuDNN 626 us (1.28)", "1e-3", "plan"],
                ["dense/d64/full/1024", "748", "459", "FA3 809 us (1.20), cuDNN: no", "1e-3", "plan"],
                ["dense/d192/full/1024", "1190", "433", "cuDNN 1905 us (1.60)", "3e-3", "plan"],
                ["custom/causal", "2162", "", "Flex TRITON 3794 us (1.75), Flex FLASH 2422 us (1.12)", "2e-3", "plan"]]
        header = ["row", "Attune us", "TFLOP/s", "peers (their time over ours)", "largest difference in norm", "plan"]
        forward = page.render("<!-- summary:begin -->\n<!-- summary:end -->\n", {
            **results(row("a")), "environment": {**results()["environment"], "commit": "abc123"}}, FA3)
        text = backward_page.render(forward, "D, G, commit abc123. `X`", header, rows)
        for name in ("backward", "backward_wide", "backward_custom"):
            self.assertEqual(text.count(f"<!-- {name}:begin -->"), 1)
        self.assertNotIn("backward_dropout", text)
        self.assertIn("A peer's time over ours, geometric mean (least to most): FA3 1.14 (1.08 to 1.20), cuDNN 1.28 (1.28 to 1.28).",
                      " ".join(text.split()))
        self.assertIn("| backward, d 64, full | 2 | FlashAttention-3 | 1.08 | 1.14 | 1.20 |", text)
        self.assertIn("| backward, d 64, full | 2 | the best peer | 1.08 | 1.14 | 1.20 |", text)
        self.assertIn("| backward, masks and scores of one's own | 1 | the best peer | 1.12 |", text)
        other = backward_page.render(forward, "D, G, commit def456. `X`", header, rows)
        self.assertIn("Of the backward pass: D, G, commit def456.", " ".join(other.split("<!-- summary:end -->")[0].split()))
        mixed = backward_page.render(text, "D, G, commit def456. `X`", header, rows[2:3])
        self.assertNotIn("| backward, d 192", mixed.split("<!-- summary:end -->")[0], "of another commit than the dense rows")

    def test_a_section_is_replaced_by_all_of_its_rows_alone(self):
        every = [p for p in problems.all_problems() if p.section in ("forward", "dropout")]
        rows = [row(p.key, p.section) for p in every]
        whole = page.render("", results(*rows), FA3, every)
        faster = [dict(r, us={"Attune": 1000.0}) for r in rows]
        self.assertEqual(page.render(whole, results(*faster[1:3]), FA3, every), whole)
        replaced = page.render(whole, results(*[r for r in faster if r["section"] == "dropout"], faster[0]), FA3, every)
        self.assertEqual(replaced.split("<!-- dropout:begin -->")[0], whole.split("<!-- dropout:begin -->")[0])
        self.assertNotEqual(replaced, whole)

    def test_a_backward_section_is_replaced_by_all_of_its_rows_alone(self):
        keys = ["dense/d64/full/512", "dense/d64/full/1024", "dropout/causal/2048"]
        first = [[key, "490", "", "", "", "plan"] for key in keys]
        header = ["row", "Attune us", "TFLOP/s", "peers", "difference", "plan"]
        whole = backward_page.render("", "D", header, first, keys)
        again = [[key, "480", "", "", "", "plan"] for key in keys]
        self.assertEqual(backward_page.render(whole, "D", header, again[:1], keys), whole)
        self.assertIn("| 480 |", backward_page.render(whole, "D", header, again[:2], keys))

    def test_other_head_dims_are_held_to_the_line_through_their_neighbours(self):
        def one(section, d, tflops, dv=None, causal=False):
            return row(f"{section}{d}{causal}", section, head_dim=d, head_dim_v=dv or d, causal=causal, flops=1e12,
                       us={"Attune": 1e6 / tflops, "cuDNN": 2e6 / tflops})

        forward = [one("forward", 64, 400), one("forward", 128, 800), one("forward", 256, 1200),
                   one("forward", 128, 100, causal=True)]
        dims = [one("dims", 80, 500), one("dims", 192, 900), one("dims", 192, 810, 128), one("dims", 96, 1, causal=True)]
        text = page.render("", results(*forward, *dims), FA3)
        self.assertIn("| 80 | 16 | no | 8192 | **500** | 500 | 1.00 |  | 250 |  | 2.00 |", text)
        self.assertIn("| 192 | 16 | no | 8192 | **900** | 1000 | 0.90 |", text)
        self.assertIn("| 192/128 | 16 | no | 8192 | **810** | 900 | 0.90 |", text)
        self.assertIn("| 96 | 16 | yes | 8192 | **1** |  |  |", text)  # its upper neighbour alone makes no line
        self.assertIn("geometric mean 0.93, least 0.90; 1 of 3 rows at 0.95 or more.", text)

    def test_broken_markers_are_refused(self):
        with self.assertRaises(ValueError):
            page.render("<!-- forward:begin -->", results(row("a")), FA3)

    def test_custom_rows_compare_with_flex(self):
        custom = row("c", "custom", name="causal", us={"Attune": 1000.0, "Flex": 1500.0}, flex_mask_ms=1.7)
        text = page.render("", results(custom), FA3)
        self.assertIn("| 1.50 |", text)
        self.assertIn("| 1.70 |", text)


class Command(unittest.TestCase):
    def test_the_summary_is_of_the_sections_of_one_run(self):
        made = "\nD, G, PyTorch T. `python3 X`\n\n"
        forward = ("<!-- forward:begin -->" + made + "| d | causal | Attune | FA3 | Attune / FA3 | against the best of the run |\n"
                   "| --- | --- | --- | --- | --- | --- |\n| 64 | no | **300** | 200 | 1.50 | 1.20 |\n"
                   "| 64 | no | **200** (nearest) | 100 | 2.00 | 1.10 |\n| 64 | yes | boom | 100 |  |  |\n<!-- forward:end -->\n")
        custom = ("<!-- custom:begin -->" + made + "| Flex ms | Attune ms | Flex / Attune |\n| --- | --- | --- |\n"
                  "| 3.0 | 1.0 | 3.00 |\n<!-- custom:end -->\n")
        text = summary.body(forward + custom)
        self.assertIn("| d 64, full | 2 | FlashAttention-3 | 1.50 | 1.73 | 2.00 |", text)
        self.assertIn("| 1 | FlexAttention | 3.00 | 3.00 | 3.00 |", text)
        self.assertNotIn("causal", text)
        self.assertNotIn("Flex", summary.body(forward + custom.replace("PyTorch T", "PyTorch U")), "of another run")
        self.assertEqual(summary.body("nothing"), "")
        page_text = page.replace_section("# Speed\n\n<!-- summary:begin -->\n<!-- summary:end -->\n", "summary", text)
        self.assertLess(max(len(line) for line in page_text.splitlines() if not line.startswith("|")), 101)

    def test_renders_saved_results_without_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            saved, out = os.path.join(folder, "r.json"), os.path.join(folder, "p.md")
            with open(saved, "w", encoding="utf-8") as file:
                json.dump(results(row("a")), file)
            subprocess.run([sys.executable, os.path.join(ROOT, "bench", "side_by_side.py"), "--render", saved, "--out", out],
                           check=True)
            with open(out, encoding="utf-8") as file:
                self.assertIn("**625**", file.read())


if __name__ == "__main__":
    unittest.main()
