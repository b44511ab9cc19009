// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/attention_wrappers.hpp"

#include <mutex>

#include "cuda/attention/key_chunks.hpp"

namespace perseid::internal::dispatch {
namespace {

static_assert(cuda::WholeKeyChunks::kWorkspace + 15 <= kChunksWorkspace);

class AttentionAfterChunks final : public Executable<Attention> {
 public:
  AttentionAfterChunks(MadeAttention whole, cuda::Gpu& gpu)
      : whole_(std::move(whole)), chunks_(gpu) {}
  Status prepare(const AttentionProblem& problem) { return chunks_.prepare(problem); }

  size_t workspace(Direction direction) const override {
    return direction == Direction::kForward ? chunks_at() + cuda::WholeKeyChunks::kWorkspace
                                            : whole_->workspace(direction);
  }
  Status forward(const AttentionForward& arguments, std::byte* workspace,
                 void* stream) const override {
    const Status status = chunks_.await(arguments.arrival_kv, workspace + chunks_at(), stream);
    return status.ok() ? whole_->forward(arguments, workspace, stream) : status;
  }
  Status backward(const AttentionBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    return whole_->backward(arguments, workspace, stream);
  }
  std::string kernels() const override { return whole_->kernels() + ", after all chunks"; }

 private:
  size_t chunks_at() const {
    return static_cast<size_t>(
        round_up(static_cast<int64_t>(whole_->workspace(Direction::kForward)), 16));
  }

  MadeAttention whole_;
  cuda::WholeKeyChunks chunks_;
};

class FallbackAttention final : public Executable<Attention> {
 public:
  FallbackAttention(MadeAttention first, AttentionFallback fallback)
      : first_(std::move(first)), fallback_(std::move(fallback)) {}

  size_t workspace(Direction direction) const override {
    return max(first_->workspace(direction), direction == Direction::kForward
                                                 ? fallback_.forward_workspace
                                                 : fallback_.backward_workspace);
  }
  Status forward(const AttentionForward& arguments, std::byte* workspace,
                 void* stream) const override {
    const Status status = first_->forward(arguments, workspace, stream);
    return run_fallback(status, stream, [&](const Executable<Attention>& fallback) {
      return fallback.forward(arguments, workspace, stream);
    });
  }
  Status backward(const AttentionBackward& arguments, std::byte* workspace,
                  void* stream) const override {
    const Status status = first_->backward(arguments, workspace, stream);
    return run_fallback(status, stream, [&](const Executable<Attention>& fallback) {
      return fallback.backward(arguments, workspace, stream);
    });
  }
  std::string kernels() const override {
    return first_->kernels() + "; as cuda:portable where TMA cannot address the tensors";
  }

 private:
  template <class Run>
  Status run_fallback(const Status& refusal, void* stream, const Run& run) const {
    if (refusal.code() != PERSEID_UNSUPPORTED) return refusal;
    std::unique_lock lock(mutex_);
    if (fallback_.made == nullptr) {
      bool capturing = false;
      if (Status status = fallback_.is_capturing(stream, &capturing); !status.ok()) return status;
      if (capturing)
        return Status::error(PERSEID_UNSUPPORTED, refusal.sentence(),
                             "; or execute the plan once before a stream is captured, which loads "
                             "kernels for such tensors");
      if (Status status = fallback_.make(&fallback_.made); !status.ok()) return status;
    }
    lock.unlock();
    return run(*fallback_.made);
  }

  MadeAttention first_;
  mutable std::mutex mutex_;
  mutable AttentionFallback fallback_;  // is made once
};

}  // namespace

AttentionProblem without_chunks(AttentionProblem problem) {
  problem.chunks_kv = {};
  return problem;
}

Status make_after_chunks(
    const AttentionProblem& problem, cuda::Gpu& gpu,
    const std::function<Status(const AttentionProblem& whole, MadeAttention*)>& make_whole,
    MadeAttention* made) {
  MadeAttention whole;
  if (Status status = make_whole(without_chunks(problem), &whole); !status.ok()) return status;
  auto attention = std::make_unique<AttentionAfterChunks>(std::move(whole), gpu);
  Status status = attention->prepare(problem);
  if (status.ok()) *made = std::move(attention);
  return status;
}

MadeAttention with_fallback(MadeAttention first, AttentionFallback fallback) {
  return std::make_unique<FallbackAttention>(std::move(first), std::move(fallback));
}

AttentionProblem piece_of(const AttentionProblem& problem, int64_t piece) {
  AttentionProblem one = problem;
  const int64_t rows = problem.q_len;
  const int64_t ranks = problem.rows.ranks, rank = problem.rows.rank;
  one.q_len = rows / 2;
  one.rows = {.ranks = 2 * ranks,
              .rank = piece == 0 ? rank : 2 * ranks - 1 - rank,
              .canonical = problem.rows.canonical};
  if (one.bias_shape[2] == rows) one.bias_shape[2] = one.q_len;
  if (problem.ragged) {
    one.rows.pieces_before = piece;
    one.q_lens = true;
  }
  if (piece == 0) return one;
  one.accumulate_key = one.accumulate_value = true;
  one.accumulate_bias = problem.accumulate_bias || one.bias_shape[2] == 1;
  return one;
}

}  // namespace perseid::internal::dispatch
