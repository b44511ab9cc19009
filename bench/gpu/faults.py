# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Faults in the code of GPU kernels, planted one at a time: a test that still passes is too weak.

    python3 faults.py BUILD [--jobs 8] [--only REGEX] [--limit SECONDS] [--list]

Kernel sources travel as text in every program that can compile them, so that a fault is planted in
a copy of a test program, without a build: the faulty file takes the place of the right one, at the
cost of its leading comment. A fault is caught if the program fails, or does not end within the
limit. Exits with 1 if one is not caught.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src"
SM90 = "cuda/device/sm90/"
ATTENTION = SM90 + "attention/"
SCORES = "cuda/device/attention/"
PORTABLE = "cuda/device/portable/attention/"
SOFTMAX = "cuda/device/softmax/"
MATMUL = "cuda/device/matmul/"
CHUNKS = "cuda/device/chunk_waits.hpp"
SIGNALS = "cuda/device/signal_wait.hpp"

# what is wrong, the test program (and which of its tests, where others take long), the file, the
# right text, the faulty text
FAULTS = [
    ("forward: the last key is hidden",
     "attention *MatchTheReference*", SCORES + "forward_scores.hpp",
     "C.right ? min(query + tile.right, length) : length;",
     "C.right ? min(query + tile.right, length) : length - 1;"),
    ("forward: the diagonal is one key short", "attention *MasksOfRange/0",
     SCORES + "forward_scores.hpp",
     "C.right ? min(query + tile.right, length)", "C.right ? min(query + tile.right - 1, length)"),
    ("forward: a window begins one key late", "attention *MasksOfRange/0",
     SCORES + "forward_scores.hpp",
     "(query + tile.left - key, end - key)", "(query + tile.left + 1 - key, end - key)"),
    ("forward: a tile of queries is skipped", "attention *ManyTiles/0", SM90 + "scheduler.hpp",
     "static_cast<int32_t>(ticket + blocks)", "static_cast<int32_t>(ticket + blocks + 1)"),
    ("forward: the maximum is stale", "attention *InputScales/0", SCORES + "softmax.hpp",
     "    rows.maximum[r] = now;", "    if constexpr (kFirst) rows.maximum[r] = now;"),
    ("forward: results are rescaled by the other row's factor", "attention *InputScales/0",
     SCORES + "softmax.hpp", "out[i] *= factor[i / 2 % 2];", "out[i] *= factor[1 - i / 2 % 2];"),
    ("forward: the sum is not rescaled", "attention *InputScales/0", SCORES + "softmax.hpp",
     "rows.sum[r] * factor[r] + own", "rows.sum[r] + own"),
    ("forward: lse of the other row", "attention *OddShapes/0", ATTENTION + "forward_epilogue.hpp",
     "write_lse(tile, lane_ / 4 + 8 * r,", "write_lse(tile, lane_ / 4 + 8 * (1 - r),"),
    ("forward: values are waited for in the wrong phase", "attention *OddShapes*",
     ATTENTION + "kv_tiles.hpp", "shared_.values().consumer_wait(values_);",
     "{ auto wrong = values_; wrong.count ^= C.stages; shared_.values().consumer_wait(wrong); }"),
    ("forward: a masked tile is taken for a free one", "attention *MasksOfRange/0",
     ATTENTION + "forward_scheduler.hpp", "{(begin + C.keys - 1) / C.keys, end / C.keys}",
     "{(begin + C.keys - 1) / C.keys, end / C.keys + 1}"),
    ("forward: key heads of grouped queries are mistaken", "attention *SharedKeyHeads",
     ATTENTION + "forward_scheduler.hpp", "tile.kv_head = tile.head / a_.group;",
     "tile.kv_head = tile.head % a_.group;"),
    ("forward: the second consumer has the first one's bias", "attention GpuAttention.Bias",
     ATTENTION + "forward_producer.hpp", "C.bias_size() / 2, 0, tile.query + 64 * c,",
     "C.bias_size() / 2, 0, tile.query,"),
    ("forward: of a pair, the first key's mask is used twice", "attention *.Visible",
     SCORES + "forward_scores.hpp", "(i % 2 == 0 ? pair.first : pair.second) == 0",
     "pair.first == 0"),
    ("forward: dropout draws a byte twice",
     "attention *DropoutHas*", SCORES + "forward_scores.hpp",
     "spread_signs(even, 3, 7, odd)", "spread_signs(even, 1, 5, odd)"),
    ("forward: the last split of the keys is lost",
     "attention *FewQueries*", ATTENTION + "forward_combine.hpp",
     "first + lane < a.num_splits ? a.split_sums",
     "first + lane < a.num_splits - 1 ? a.split_sums"),
    ("backward: grad_lse has the wrong sign", "attention_backward *Dim.*/0",
     ATTENTION + "backward_rows.hpp", "a.delta[at] = empty ? 0 : sum - grad_lse[t];",
     "a.delta[at] = empty ? 0 : sum + grad_lse[t];"),
    ("backward: grad_query lacks the last 16 keys of a tile", "attention_backward *Dim.*/0",
     ATTENTION + "backward_products.hpp", "k < C.keys() / 16; ++k)",
     "k < C.keys() / 16 - 1; ++k)"),
    ("backward: grad_key is not scaled", "attention_backward *Dim.*/0",
     ATTENTION + "backward_epilogue.hpp", "store<C.key_dim>(d, c_.arguments.scale,",
     "store<C.key_dim>(d, 1,"),
    ("backward: grad_value lacks dropout's factor", "attention_backward *.Dropout/0",
     ATTENTION + "backward_epilogue.hpp",
     "store<C.value_dim>(d, dropout_factor<C.dropout>(c_.arguments),",
     "store<C.value_dim>(d, 1,"),
    ("backward: deterministic mode does not wait for its semaphore",
     "attention_backward *.SameBits*/0",
     ATTENTION + "dq_semaphore.hpp",
     "in_order = in_order && await_number(semaphore(step, consumer), rank(step), a_.timed_out);",
     "in_order = semaphore(step, consumer) != nullptr;"),
    ("backward: the last block of queries is lost", "attention_backward *Dim.*/0",
     ATTENTION + "backward_tiles.hpp", "last_query / C.queries + 1 : tile.first",
     "last_query / C.queries : tile.first"),
    ("backward: the diagonal is one query short", "attention_backward *MasksOfRange/0",
     ATTENTION + "backward_scores.hpp", "key - tile.right + 1 - first",
     "key - tile.right + 2 - first"),
    ("backward: dropout's bits of the other key", "attention_backward *.Dropout/0",
     ATTENTION + "backward_scores.hpp", "8 - group % 8 + i / 2 % 2 * 16",
     "8 - group % 8 + (1 - i / 2 % 2) * 16"),
    ("backward: a block of a cluster is not added", "attention_backward *SharedKeyHeads",
     ATTENTION + "backward_epilogue.hpp", "block < C.cluster_size; ++block)",
     "block < C.cluster_size - 1; ++block)"),
    ("backward: the last part of a bias gradient is lost",
     "attention_backward *GradientOfBiasOfTheWholeBatch*",
     SCORES + "bias_split.hpp", "p < a_.num_splits; ++p)", "p < a_.num_splits - 1; ++p)"),
    ("portable backward: the last step is lost", "portable_attention_backward *OddShapes/0",
     PORTABLE + "backward_scores.hpp", "begin < end ? (end - 1) / C.columns + 1",
     "begin < end ? (end - 1) / C.columns"),
    ("portable backward: the diagonal is one query short",
     "portable_attention_backward *MasksOfRange/0", PORTABLE + "backward_scores.hpp",
     "begin = row - rows_.right + 1;", "begin = row - rows_.right + 2;"),
    ("portable backward: lse of the stage before", "portable_attention_backward *OddShapes/0",
     PORTABLE + "backward.hpp", "stage * 2 * C.columns + 2 * (lane() % 4);",
     "(1 - stage) * 2 * C.columns + 2 * (lane() % 4);"),
    ("portable backward: dS of the step before", "portable_attention_backward *OddShapes/0",
     PORTABLE + "backward.hpp", "query_sums().add(i - 1, 0,", "query_sums().add(i, 0,"),
    ("portable backward: dropout's bits of the other key",
     "portable_attention_backward *.Dropout/0", PORTABLE + "backward_scores.hpp",
     "keeps(word, 2 * r + key % 2)", "keeps(word, 2 * (1 - r) + key % 2)"),
    ("portable backward: key heads of grouped queries are mistaken",
     "portable_attention_backward *SharedKeyHeads", PORTABLE + "backward_scores.hpp",
     "own.kv_head = C.of_keys() ? head : head / a.group;",
     "own.kv_head = C.of_keys() ? head : head % a.kv_heads;"),
    ("portable backward: hidden values are not cleared",
     "portable_attention_backward *HiddenKeysBackward.Causal/0", PORTABLE + "backward.hpp",
     "Copy<C.columns, kFirstDim>::clear_nonfinite(memory_ + first);", ";"),
    ("softmax: the last chunk of a split row is lost", "softmax", SOFTMAX + "split.hpp",
     "i < arguments.chunks; i += C.threads())\n    whole",
     "i < arguments.chunks - 1; i += C.threads())\n    whole"),
    ("softmax: the sum of a part is not rescaled", "softmax", SOFTMAX + "reduce.hpp",
     "b.sum * weight(b.maximum, maximum)", "b.sum"),
    ("softmax: columns lack a warp's sum",
     "softmax *Kinds*:*Any*", SOFTMAX + "columns.hpp",
     "w < C.warps; ++w)\n    whole.sum +=", "w < C.warps - 1; ++w)\n    whole.sum +="),
    ("softmax: the last turn of a staged row is lost", "softmax", SOFTMAX + "shared.hpp",
     "turn < C.stages; ++turn) {\n    Elements<C, true> held;\n    reader.take(turn, held);\n"
     "    own",
     "turn < C.stages - 1; ++turn) {\n    Elements<C, true> held;\n    reader.take(turn, held);\n"
     "    own"),
    ("softmax: results of a streamed row before its statistics", "softmax", SOFTMAX + "stream.hpp",
     "                       state.slot.parity());\n    const Statistics",
     "                       state.slot.parity() ^ 1);\n    const Statistics"),
    ("matmul: the wrong stage is overwritten", "matmul", MATMUL + "tensor_core.hpp",
     "if (i == 0) bring(newest);", "if (i == 0) bring(oldest);"),
    ("matmul: the last column of c is lost", "matmul", MATMUL + "output.hpp",
     "const bool both = column + 1 < columns_;", "const bool both = column + 2 < columns_;"),
    ("matmul: the depth lacks its last element", "matmul", MATMUL + "fma.hpp",
     "clamp<int64_t>(depth_left_, 0, C.depth())", "clamp<int64_t>(depth_left_ - 1, 0, C.depth())"),
    ("matmul of sm_90: a step of the depth is taken twice", "sm90_matmul *ManyBlocks",
     SM90 + "matmul/producer.hpp", "load(tile, step * C.depth());",
     "load(tile, (step - (step > 1)) * C.depth());"),
    ("matmul of sm_90: both consumers take the first rows", "sm90_matmul *ManyTilesOfABlock",
     SM90 + "matmul/consumer.hpp", "shared_.a_operand(consumer_, stage, k)",
     "shared_.a_operand(0, stage, k)"),
    ("matmul of sm_90: every other tile of a block is skipped", "sm90_matmul *ManyTilesOfABlock",
     SM90 + "matmul/scheduler.hpp", "number += clusters)", "number += 2 * clusters)"),
    ("matmul of sm_90: a pair of blocks loads one half of b twice",
     "sm90_matmul *ManyTilesOfABlock", SM90 + "matmul/producer.hpp",
     "const int column = tile.column + first;",
     "const int column = tile.column;"),
    ("matmul of sm_90: chunks of a are not awaited", "async_matmul *RandomArrivals*",
     SM90 + "matmul/scheduler.hpp", "a.await(tile.rows, by_columns ? ChunkRange<int32_t>{}",
     "a.await({}, by_columns ? ChunkRange<int32_t>{}"),
    ("chunks: the epoch before is taken for this one", "async_matmul *RandomArrivals*",
     CHUNKS, "chunk : chunk - count)),\n            epoch);",
     "chunk : chunk - count)),\n            epoch - 1);"),
    ("chunks: the last one of a range is not awaited", "async_attention *Arrivals*/tail",
     CHUNKS, "if (missing > range.last) break;", "if (missing >= range.last) break;"),
    ("chunks: a lane polls its neighbour's signal", "async_attention *Arrivals*/tail",
     CHUNKS, "const int visit = missing + lane,", "const int visit = missing + (lane ^ 1),"),
    ("chunks: a search finds the part before", "async_attention *Arrivals*/tail",
     CHUNKS, "(__popc(__ballot_sync(kWholeWarp, begins_before)) - 1) * part",
     "max(__popc(__ballot_sync(kWholeWarp, begins_before)) - 2, 0) * part"),
    ("chunks: a depth is not awaited", "async_matmul *RandomArrivals*", CHUNKS,
     "while (depth_ < depth && next_", "while (depth_ < depth - 64 && next_"),
    ("warp products: chunks of a are not awaited", "async_matmul *RandomArrivals/TensorCore",
     MATMUL + "tensor_core.hpp", "a_.await(tile.rows, by_columns", "a_.await({}, by_columns"),
    ("warp products: the next stage's depth is not awaited",
     "async_matmul *RandomArrivals/TensorCore", MATMUL + "tensor_core.hpp",
     "(number + C.stages) * C.depth()", "number * C.depth()"),
    ("chunks: kernels without them do not await b", "async_streams *OtherKernels",
     SIGNALS, "operand < 2; ++operand", "operand < 1; ++operand"),
    ("chunks: they leave although one is missing", "async_streams *OtherKernels",
     SIGNALS, "== stamp_of(arguments)) return;", "== 1) return;"),
    ("keys that arrive: V of the tile after K's", "async_attention *Arrivals*/full",
     ATTENTION + "forward_producer.hpp", "return after_key ? this->before_ : this->visited_;",
     "return this->visited_;"),
    ("keys that arrive: splits follow the last one again", "async_attention *Arrivals*/decode",
     ATTENTION + "forward_scheduler.hpp", "if (visit >= a_.num_splits) return tiles;",
     "if (visit > a_.num_splits) return tiles;"),
    ("a peer: a chunk is signalled before it is stored", "peer *", SM90 + "matmul/epilogue.hpp",
     "ptx::tma_store_wait();\n  ptx::fence_proxy_async_global();\n  signals.depart",
     "ptx::fence_proxy_async_global();\n  signals.depart"),
    ("chunks: an output is signalled after its first part", "async_matmul *ResultsAreThere*",
     CHUNKS, "count_part(chunk, stamp) == parts_of(chunk)",
     "count_part(chunk, stamp) == 1"),
    ("matmul of f64: elements of the next four of k", "matmul *EdgeShapes",
     MATMUL + "tensor_core_warp.hpp", "8 * j, k + 4 * e);", "8 * j, k + 4 * (1 - e));"),
    ("matmul: vectors are permuted by the wrong bits", "matmul *ManyBlocks",
     MATMUL + "tensor_core_warp.hpp", "vectors % 8 << 4", "vectors % 4 << 4"),
    ("activation: none but silu", "matmul *Activations*/1", MATMUL + "policy.hpp",
     "(kActivation, y);", "(Activation::kSilu, y);"),
    ("amax: of the elements instead of their magnitudes", "sm90_matmul *Activations*/0",
     MATMUL + "policy.hpp", "bits_of(z) & (~Bits{0} >> 1);", "bits_of(z);"),
    ("amax: the last warps are forgotten", "sm90_matmul *Activations*/0", MATMUL + "policy.hpp",
     "if (threadIdx.x % 32 == 0) atomicMax", "if (threadIdx.x % 128 == 0) atomicMax"),
    ("amax of sm_90: what lies outside of c counts, deferred", "sm90_matmul *AmaxOf*",
     SM90 + "matmul/epilogue.hpp", "policy_.apply(sums[i], counted(second_row, column))",
     "policy_.apply(sums[i], true)"),
    ("amax of sm_90: what lies outside of c counts", "sm90_matmul *AmaxOf*",
     SM90 + "matmul/epilogue.hpp", "counts && counted(", "counts || counted("),
    ("amax of f32: that of the fixup is lost", "f32_matmul *Activations*/0", MATMUL + "fma.hpp",
     "output.write(row, column, sums[i][j]);\n      }\n    output.finish();",
     "output.write(row, column, sums[i][j]);\n      }"),
    ("matmul of f8: the first row's scale for both", "f8_matmul *TypesAndResults/2",
     SM90 + "matmul/epilogue.hpp", "vectors.lower = row_factor(tile, row + 8);",
     "vectors.lower = row_factor(tile, row);"),
    ("matmul of f8: scales of columns from a neighbouring lane", "f8_matmul *TypesAndResults/2",
     SM90 + "matmul/epilogue.hpp", "2 * i % 32 + 2 * quad + second);",
     "2 * i % 32 + 2 * quad);"),
    ("matmul of f8: the first block's scale for all columns", "f8_matmul *Tiles/3",
     SM90 + "matmul/promoted_consumer.hpp", "i == 2 ? second", "i == 2 ? first"),
    ("matmul of f8: a tile in the middle of a block has the next one's scale", "f8_matmul *Tiles/3",
     SM90 + "matmul/promoted_consumer.hpp", "shifted_ ? second : first", "second"),
    ("matmul of f8: scales of the step before", "f8_matmul *TypesAndResults/3",
     SM90 + "matmul/promoted_consumer.hpp", "b_ += arguments_.b_scales.step;", ""),
    ("matmul of f8: the result's scale is left out", "f8_matmul *TypesAndResults/0",
     SM90 + "matmul/epilogue.hpp", "result(0, first) * scale, result(1, second) * scale)\n"
     "                : ptx::to_e5m2x2(", "result(0, first), result(1, second))\n"
     "                : ptx::to_e5m2x2("),
    ("promoted sums: a product is added once too often", "f8_matmul *PromotedSums*",
     SM90 + "matmul/promoted_consumer.hpp", "pairs[j][1]), i + j > 0);",
     "pairs[j][1]), true);"),
    ("splitting: the low halves lack their scale", "f32_matmul *IsAsAccurate*",
     "cuda/device/split/halves.hpp", "(x - kept.x) * kLowHalfScale", "(x - kept.x)"),
    ("splitting: long lines repeat their beginning", "f32_matmul *LongLines",
     "cuda/device/split/split.hpp", "if (depth_ > kSpan) load(k);", "load(0);"),
    ("splitting: long lines across k are not loaded again", "f32_matmul *LongLines*",
     "cuda/device/split/split.hpp", "if (deep > kHeld * step) load(k);", ""),
    ("splitting: a lost number is not counted", "f32_matmul *SmallNumbers*",
     "cuda/device/split/halves.hpp", "0x1p-28f / terms", "0x1p-60f / terms"),
]


def without_essay(text, surplus):
    """The file without `surplus` bytes of its comment lines, from the first one on."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if surplus <= 0:
            break
        if line.startswith("//"):
            cut = min(surplus, len(line) - 2)
            lines[index] = line[:len(line) - cut]
            surplus -= cut
    assert surplus <= 0, "the file has no comment to give up"
    return "\n".join(lines)


def planted(program, path, right, wrong):
    """The bytes of the program with the fault."""
    text = (SOURCES / path).read_text()
    if text.count(right) != 1:
        raise LookupError(f"{path} has {text.count(right)} times: {right}")
    faulty = without_essay(text.replace(right, wrong), len(wrong) - len(right)).encode()
    whole = text.encode()
    if program.count(whole) != 1:
        raise LookupError(f"the program does not hold {path} as it is in {SOURCES}: build it again")
    return program.replace(whole, faulty.ljust(len(whole), b"\n"))


def program_of(options, test):
    """The test program's path, and a filter of its tests."""
    name, *tests = test.split()
    return pathlib.Path(options.build) / "tests" / f"gpu_{name}_test", *(tests or ["*"])


def try_fault(options, fault):
    name, test, path, right, wrong = fault
    program, tests = program_of(options, test)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / program.name
        copy.write_bytes(planted(program.read_bytes(), path, right, wrong))
        copy.chmod(0o755)
        environment = dict(os.environ, PERSEID_CACHE_DIR=folder, GTEST_FAIL_FAST="1",
                           GTEST_FILTER=tests, PERSEID_PACK="")
        try:
            done = subprocess.run([copy], env=environment, capture_output=True, text=True,
                                  timeout=options.limit)
        except subprocess.TimeoutExpired:
            return name, True, f"no end within {options.limit} s"
    failed = re.findall(r"^\[  FAILED  \] (\S+)", done.stdout, re.M)
    if done.returncode == 77 or re.search(r"^\[  SKIPPED \]", done.stdout, re.M) and not failed:
        return name, False, "tests were skipped"
    compiled = re.search(r"nvrtc|error: ", done.stdout + done.stderr)
    if compiled:
        return name, False, "the faulty code does not compile: " + compiled.group(0)
    return name, done.returncode != 0, failed[0] if failed else f"exit code {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=150)
    parser.add_argument("--list", action="store_true", help="check that they can be planted")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if re.search(options.only, fault[0])]
    if options.list:
        for _, test, path, right, wrong in faults:
            planted(program_of(options, test)[0].read_bytes(), path, right, wrong)
        print(f"{len(faults)} faults can be planted")
        return
    caught = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, is_caught, how in pool.map(lambda fault: try_fault(options, fault), faults):
            caught += is_caught
            print(f"{'caught' if is_caught else 'SURVIVED':>8}  {name}: {how}", flush=True)
    print(f"{caught} of {len(faults)} faults caught")
    sys.exit(caught != len(faults))


if __name__ == "__main__":
    main()
