// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The implementations of attention, best first.
#include <cmath>
#include <span>
#include <vector>

#include "base/missing_chunk.hpp"
#include "cpu/reference/reference.hpp"
#include "cpu/waits.hpp"
#include "cuda/attention/clear_rows.hpp"
#include "cuda/attention/reference.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/portable/attention_backward.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/copy_queue.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "cuda/sm90/attention_backward_float32.hpp"
#include "dispatch/attention_refusals.hpp"
#include "dispatch/attention_wrappers.hpp"

namespace perseid::internal::dispatch {
namespace {

using Made = MadeAttention;

// Above this many query rows per key head, cpu:tiled, which reads keys once per tile of queries, is
// faster than cpu:decode.
constexpr int64_t kDecodeRows = 8;

// Forward over keys and values that arrive in chunks, on the CPU.
class ChunkedCpuAttention final : public Executable<Attention> {
 public:
  ChunkedCpuAttention(const AttentionProblem& problem, const Device& device,
                      const CpuKernels<Attention>& kernels, bool whole)
      : problem_(problem),
        executor_(*device.executor),
        kernels_(kernels),
        present_(problem, device, kernels),
        whole_(whole) {}

  size_t workspace(Direction direction) const override { return present_.workspace(direction); }
  Status forward(const AttentionForward& arguments, std::byte* workspace, void*) const override {
    cpu::Waits waits(problem_.chunks_kv, arguments.arrival_kv, {}, {}, {}, {});
    waits.limit(0, chunks_read(arguments));
    if (!whole_ || waits.await_all())
      kernels_.forward(problem_, arguments, {executor_, workspace, &waits});
    waits.rest();
    *arguments.missing = waits.missing();
    if (arguments.missing->end == WaitEnd::kArrived) return {};
    return status_of({.operation = "attention forward",
                      .operand = "key",
                      .chunk = arguments.missing->chunk,
                      .expected = arguments.missing->expected,
                      .seen = arguments.missing->seen,
                      .aborted = arguments.missing->end == WaitEnd::kAborted,
                      .deadline_ns = arguments.arrival_kv.deadline_ns});
  }
  Status backward(const AttentionBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    return present_.backward(arguments, workspace, stream);
  }

 private:
  // From the first to the last chunk that holds a key which some query sees.
  ChunkRange<int64_t> chunks_read(const AttentionForward& arguments) const {
    KeyRange read{0, 0};
    for (int64_t batch = 0; batch < problem_.batch; ++batch) {
      const Sequence sequence = sequence_of(problem_, arguments, batch);
      const KeyRange seen = seen_keys(problem_, sequence.q_len, sequence.kv_len);
      if (seen.begin == seen.end) continue;
      const KeyRange rows{sequence.kv_begin + seen.begin, sequence.kv_begin + seen.end};
      read = read.end == 0 ? rows : KeyRange{min(read.begin, rows.begin), max(read.end, rows.end)};
      if (!problem_.ragged && !problem_.kv_lens) break;  // all sequences are alike
    }
    return ChunkTable<int64_t>{problem_.chunks_kv.begin, problem_.chunks_kv.count}.covering(
        read.begin, read.end);
  }

  AttentionProblem problem_;
  cpu::Executor& executor_;
  CpuKernels<Attention> kernels_;
  CpuExecutable<Attention> present_;  // for backward, which finds all keys
  bool whole_;                        // the kernel knows nothing of chunks: all arrive before it
};

Status make_on_cpu(const AttentionProblem& problem, const Device& device,
                   const CpuKernels<Attention>& kernels, bool whole, Made* made) {
  if (!problem.async()) return run_on_cpu<Attention>(problem, device, kernels, made);
  *made = std::make_unique<ChunkedCpuAttention>(problem, device, kernels, whole);
  return {};
}

CpuKernels<Attention> tiled_kernels(const AttentionProblem& problem, const Device& device) {
  const cpu::KernelTable& table = *device.kernels;
  const int32_t workers = device.workers();
  return {.forward = table.attention_forward,
          .forward_workspace = table.attention_forward_workspace(problem, workers),
          .backward = table.attention_backward,
          .backward_workspace =
              problem.backward() ? table.attention_backward_workspace(problem, workers) : 0};
}

// For explain, where there is a kernel pack that lacks kernels of a plan, which has those of
// backward first.
std::string note_of_compilation(const cuda::Gpu& gpu, std::span<const cuda::KernelNames> kernels) {
  std::string missing;
  if (cuda::kernel_pack().size() > 0)
    for (const cuda::KernelNames& each : kernels)
      if (!gpu.is_packed(each))
        missing += concatenate(missing.empty() ? "" : " and ",
                               &each == &kernels.back() ? "forward" : "backward");
  if (missing.empty()) return "";
  return concatenate("; the kernel pack lacks its ", missing, ", which the first plan compiles");
}

// Kernels of a GPU, of each direction.
template <class Forward, class Backward>
class GpuAttention final : public Executable<Attention> {
 public:
  // `note` goes with the description of backward.
  static Status make(const AttentionProblem& problem, cuda::Gpu& gpu, Made* made,
                     const std::string& note = {}) {
    auto attention = std::make_unique<GpuAttention>();
    std::vector<cuda::KernelNames> kernels;
    if (problem.backward()) kernels.push_back(Backward::kernels_of(problem, gpu.facts()));
    kernels.push_back(Forward::kernels_of(problem, gpu.facts()));
    attention->note_ = note + note_of_compilation(gpu, kernels);
    Status status;
    if (problem.backward()) status = gpu.load_ahead(kernels);
    if (status.ok()) status = Forward::make(problem, gpu, &attention->forward_);
    if (status.ok() && problem.backward())
      status = Backward::make(problem, gpu, &attention->backward_);
    if constexpr (!requires { Forward::kClearsRows; })
      if (status.ok()) status = attention->clear_rows_.make(problem, gpu);
    attention->accumulates_query_ = problem.accumulate_query;
    if (status.ok()) *made = std::move(attention);
    return status;
  }
  size_t workspace(Direction direction) const override {
    if (direction == Direction::kForward) return forward_->forward_workspace();
    return backward_ != nullptr ? backward_->workspace() : 0;
  }
  Status forward(const AttentionForward& arguments, std::byte* workspace,
                 void* stream) const override {
    Status status = forward_->forward(arguments, workspace, stream);
    return status.ok() ? clear_rows_.launch(arguments, arguments.out, arguments.lse, stream)
                       : status;
  }
  Status backward(const AttentionBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    Status status = backward_->backward(arguments, workspace, stream);
    if (!status.ok() || accumulates_query_) return status;
    return clear_rows_.launch(arguments, arguments.grad_query, {}, stream);
  }
  std::string kernels() const override {
    std::string text = forward_->description();
    if (backward_ != nullptr) text += "; " + backward_->description();
    return text + note_;
  }

 private:
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<Backward> backward_;  // null without gradients
  cuda::ClearRows clear_rows_;
  bool accumulates_query_ = false;
  std::string note_;
};
using Sm90Attention = GpuAttention<cuda::Sm90Attention, cuda::Sm90AttentionBackward>;
// For f32, and for dims that have no other backward. In f32 all forwards and backwards add the same
// products in the same order, so that backward's scores have the roundings that are in lse.
using MixedAttention = GpuAttention<cuda::Sm90Attention, cuda::PortableAttentionBackward>;
using Sm90Float32Attention = GpuAttention<cuda::Sm90Attention, cuda::Sm90Float32AttentionBackward>;
using PortableAttention = GpuAttention<cuda::PortableAttention, cuda::PortableAttentionBackward>;
using Float64Attention = GpuAttention<cuda::Float64Attention, cuda::PortableAttentionBackward>;
using GpuReference = GpuAttention<cuda::ReferenceAttention, cuda::ReferenceAttentionBackward>;

// Arguments of a ragged piece.
template <class Arguments>
void cut_lengths(int64_t piece, Arguments* arguments) {
  Tensor& begins = arguments->cu_seqlens_q;
  auto* const numbers = begins.template as<int64_t>();
  arguments->q_lens = begins;
  arguments->q_lens.data = numbers + 2 * begins.shape[0];
  arguments->q_lens.stride[0] = 1;
  --arguments->q_lens.shape[0];
  begins.data = numbers + piece;
}

template <class Each>
class ZigzagAttention final : public Executable<Attention> {
 public:
  static Status make(const AttentionProblem& problem, cuda::Gpu& gpu, Made* made) {
    auto attention = std::make_unique<ZigzagAttention>();
    attention->rows_ = problem.q_len / 2;
    attention->ragged_ = problem.ragged;
    Status status;
    for (int64_t piece = 0; piece < 2 && status.ok(); ++piece)
      status = Each::make(piece_of(problem, piece), gpu, &attention->pieces_[piece]);
    if (status.ok()) *made = std::move(attention);
    return status;
  }
  size_t workspace(Direction direction) const override {
    return max(pieces_[0]->workspace(direction), pieces_[1]->workspace(direction));
  }
  Status forward(const AttentionForward& arguments, std::byte* workspace,
                 void* stream) const override {
    Status status;
    for (int64_t piece = 0; piece < 2 && status.ok(); ++piece) {
      AttentionForward own = arguments;
      cut(piece, {&own.query, &own.out, &own.lse, &own.bias, &own.visible});
      own.lengths.q_len = rows_;
      if (ragged_) cut_lengths(piece, &own);
      status = pieces_[piece]->forward(own, workspace, stream);
    }
    return status;
  }
  Status backward(const AttentionBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    Status status;
    for (int64_t piece = 0; piece < 2 && status.ok(); ++piece) {
      AttentionBackward own = arguments;
      cut(piece, {&own.query, &own.out, &own.lse, &own.bias, &own.visible, &own.grad_out,
                  &own.grad_lse, &own.grad_query, &own.grad_bias});
      own.lengths.q_len = rows_;
      if (ragged_) cut_lengths(piece, &own);
      status = pieces_[piece]->backward(own, workspace, stream);
    }
    return status;
  }
  std::string kernels() const override {
    return concatenate("two pieces, each by ", pieces_[0]->kernels());
  }

 private:
  void cut(int64_t piece, std::initializer_list<Tensor*> tensors) const {
    for (Tensor* tensor : tensors) {
      if (ragged_ || !tensor->present() || tensor->shape[2] != 2 * rows_) continue;
      tensor->data =
          tensor->as<std::byte>() + piece * rows_ * tensor->stride[2] * size_of(tensor->dtype);
      tensor->shape[2] = rows_;
    }
  }

  int64_t rows_ = 0;  // of a piece
  bool ragged_ = false;
  Made pieces_[2];
};

// Kernels that find the row of a query where it lies in its tensor alone.
std::string refuse_rows(const AttentionProblem& problem) {
  if (problem.rows.canonical) return kOrderOfRows;
  return problem.rows.all() ? std::string() : "made for all rows of every sequence of queries";
}

bool has_float32_backward(const AttentionProblem& problem) {
  return problem.dtype == DType::kF32 && cuda::refuse_float32_attention_backward(problem).empty();
}

// Kernels without chunks run after a wait for all chunks.
bool follows_chunks(const AttentionProblem& problem, const Device& device) {
  return problem.async() && !problem.rows.canonical && problem.arriving_groups == 1 &&
         !cuda::refuse_attention(problem, device.gpu->facts()).empty();
}

// Refuses groups of heads that arrive one after the other.
constexpr const char* kHeadsAtOnce = "made for keys and values of all heads that arrive at once";
// Refuses gradients that leave in chunks during backward.
constexpr const char* kWholeGradients =
    "made for gradients of keys and values that leave when all are computed";

template <class Kernels>
Status make_portable(const AttentionProblem& problem, cuda::Gpu& gpu, Made* made) {
  if (problem.async())
    return make_after_chunks(
        problem, gpu,
        [&](const AttentionProblem& whole, Made* of) {
          return make_portable<Kernels>(whole, gpu, of);
        },
        made);
  return problem.rows.zigzag ? ZigzagAttention<Kernels>::make(problem, gpu, made)
                             : Kernels::make(problem, gpu, made);
}
std::string refuse_portable(const AttentionProblem& problem, const Device& device) {
  std::string why = refuse_order(problem, device);
  if (why.empty()) why = refuse_scale(problem, false);
  if (why.empty() && problem.rows.canonical)
    why = cuda::refuse_portable_attention(whole_of(problem), device.gpu->facts());
  if (problem.async() && problem.arriving_groups > 1) why = kHeadsAtOnce;
  if (problem.async_backward) why = kWholeGradients;
  if (problem.rows.zigzag && problem.ragged && problem.grad_bias)
    why = "its gradient of bias is made for sequences of one length, in zigzag pieces";
  for (int64_t piece = 0; piece < (problem.rows.zigzag ? 2 : 1); ++piece) {
    const AttentionProblem one = problem.rows.zigzag ? piece_of(problem, piece) : problem;
    if (why.empty()) why = cuda::refuse_portable_attention(one, device.gpu->facts());
    if (why.empty()) why = cuda::refuse_portable_attention_backward(one);
  }
  return why;
}

// Tensors that TMA cannot address are known when they are there.
Status add_fallback(const AttentionProblem& problem, cuda::Gpu& gpu, Made* made) {
  const int32_t shared_bytes = gpu.facts().shared_bytes;
  AttentionFallback fallback;
  fallback.make = [problem, &gpu](Made* of) {
    return make_portable<PortableAttention>(problem, gpu, of);
  };
  fallback.is_capturing = [&gpu](void* stream, bool* capturing) {
    return cuda::find_capture(gpu, stream, capturing);
  };
  fallback.forward_workspace =
      cuda::portable_attention_workspace(problem) + (problem.async() ? kChunksWorkspace : 0);
  bool compiled = gpu.is_compiled(cuda::PortableAttention::kernels_of(problem, gpu.facts()));
  if (problem.backward()) {
    fallback.backward_workspace = cuda::portable_attention_backward_workspace(
        problem, cuda::portable_attention_backward_planes(problem, shared_bytes));
    compiled = compiled &&
               gpu.is_compiled(cuda::PortableAttentionBackward::kernels_of(problem, gpu.facts()));
  }
  if (compiled)
    if (Status status = fallback.make(&fallback.made); !status.ok()) return status;
  *made = with_fallback(std::move(*made), std::move(fallback));
  return {};
}

Status make_sm90(const AttentionProblem& problem, const Device& device, Made* made) {
  if (follows_chunks(problem, device))
    return make_after_chunks(
        problem, *device.gpu,
        [&](const AttentionProblem& whole, Made* of) { return make_sm90(whole, device, of); },
        made);
  if (takes_pieces(problem, device))
    return ZigzagAttention<Sm90Attention>::make(problem, *device.gpu, made);
  if (size_of(problem.dtype) == 2) {  // planes of f32 are in the workspace
    Status status = has_other_backward(problem) ? MixedAttention::make(problem, *device.gpu, made)
                                                : Sm90Attention::make(problem, *device.gpu, made);
    if (!status.ok() || !problem.rows.all() || problem.rows.canonical ||
        !refuse_portable(problem, device).empty())
      return status;
    return add_fallback(problem, *device.gpu, made);
  }
  if (problem.backward() && has_float32_backward(problem))
    return Sm90Float32Attention::make(problem, *device.gpu, made);
  std::string note;
  if (problem.backward())
    note = concatenate(" (as cuda:portable; the other one is ",
                       cuda::refuse_float32_attention_backward(problem), ")");
  return MixedAttention::make(problem, *device.gpu, made, note);
}

// wgmma and TMA of compute capability 9.0, f16, bf16 and f32 (kernels of any GPU compute the
// backward of large dims, and what those of f32 do not take).
constexpr Implementation<Attention> kSm90 = {
    .name = "cuda:sm90",
    .refuse =
        [](const AttentionProblem& given, const Device& device) {
          if (given.rows.canonical) return refuse_sm90_in_order(given, device);
          const bool whole = follows_chunks(given, device);
          if (given.async_backward && (whole || has_other_backward(given)))
            return std::string(kWholeGradients);
          const AttentionProblem problem = whole ? without_chunks(given) : given;
          std::string why = cuda::refuse_attention(problem, device.gpu->facts());
          if (why.empty()) why = refuse_scale(problem, true);
          if (!why.empty() || !problem.backward()) return why;
          if (!has_other_backward(problem)) return cuda::refuse_attention_backward(problem);
          if (has_float32_backward(problem)) return why;
          why = cuda::refuse_portable_attention(problem, device.gpu->facts());
          return why.empty() ? cuda::refuse_portable_attention_backward(problem) : why;
        },
    .make = make_sm90};

// mma.sync of sm_80 and up.
constexpr Implementation<Attention> kPortable = {
    .name = "cuda:portable",
    .refuse = refuse_portable,
    .make = [](const AttentionProblem& problem, const Device& device, Made* made) {
      return problem.dtype == DType::kF64
                 ? make_portable<Float64Attention>(problem, *device.gpu, made)
                 : make_portable<PortableAttention>(problem, *device.gpu, made);
    }};

// The formula in float64 on a GPU: slow, for tests and for what no other kernel of a GPU takes.
constexpr Implementation<Attention> kGpuReference = {
    .name = "cuda:reference",
    .refuse =
        [](const AttentionProblem& problem, const Device& device) {
          if (problem.async() && problem.arriving_groups > 1) return std::string(kHeadsAtOnce);
          if (problem.async_backward) return std::string(kWholeGradients);
          if (std::string why = refuse_order(problem, device); !why.empty()) return why;
          return cuda::refuse_reference_attention(device.gpu->facts());
        },
    .make =
        [](const AttentionProblem& problem, const Device& device, Made* made) {
          cuda::Gpu& gpu = *device.gpu;
          if (!problem.async()) return GpuReference::make(problem, gpu, made);
          return make_after_chunks(
              problem, gpu,
              [&](const AttentionProblem& whole, Made* of) {
                return GpuReference::make(whole, gpu, of);
              },
              made);
        }};

// Few queries, as in token generation: tasks split the keys, bound by memory. Backward is that of
// cpu:tiled.
constexpr Implementation<Attention> kDecode = {
    .name = "cpu:decode",
    .refuse =
        [](const AttentionProblem& problem, const Device&) {
          const int64_t rows = problem.group() * problem.q_len;
          if (std::string why = refuse_rows(problem); !why.empty()) return why;
          return rows <= kDecodeRows
                     ? refuse_scale(problem, false)
                     : concatenate("made for at most ", kDecodeRows,
                                   " query rows per key head (heads / kv_heads * q_len), got ",
                                   rows);
        },
    .make =
        [](const AttentionProblem& problem, const Device& device, Made* made) {
          CpuKernels<Attention> kernels = tiled_kernels(problem, device);
          kernels.forward = device.kernels->attention_decode;
          kernels.forward_workspace =
              device.kernels->attention_decode_workspace(problem, device.workers());
          return make_on_cpu(problem, device, kernels, false, made);
        }};

// Tiles of queries against tiles of keys, bound by the FMA units.
constexpr Implementation<Attention> kTiled = {
    .name = "cpu:tiled",
    .refuse = [](const AttentionProblem& problem,
                 const Device&) { return refuse_scale(problem, false); },
    .make =
        [](const AttentionProblem& problem, const Device& device, Made* made) {
          return make_on_cpu(problem, device, tiled_kernels(problem, device), false, made);
        }};

// The formula in float64, row by row: the oracle, slow.
constexpr Implementation<Attention> kReference = {
    .name = "cpu:reference",
    .refuse = [](const AttentionProblem&, const Device&) { return std::string(); },
    .make =
        [](const AttentionProblem& problem, const Device& device, Made* made) {
          const int32_t workers = device.workers();
          return make_on_cpu(
              problem, device,
              {.forward = cpu::reference::attention_forward,
               .forward_workspace = cpu::reference::attention_workspace(problem, workers, false),
               .backward = cpu::reference::attention_backward,
               .backward_workspace =
                   problem.backward() ? cpu::reference::attention_workspace(problem, workers, true)
                                      : 0},
              true, made);
        }};

constexpr Implementation<Attention> kList[] = {kSm90,   kPortable, kGpuReference,
                                               kDecode, kTiled,    kReference};

}  // namespace

std::span<const Implementation<Attention>> attention_implementations() { return kList; }

}  // namespace perseid::internal::dispatch
