// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The network: bytes in, the loss of predicting each byte's successor out, and gradients back.
//
//   x = embedding[token]
//   for each layer:
//     q, k, v = rotate(norm(x) W_qkv)         rotary positions on q and k
//     x = x + attention(q, k, v) W_projection causal
//     x = x + gelu(norm(x) W_up) W_down
//   loss = mean over rows of -log_softmax(norm(x) W_head)[next token]
//
// Every matmul, attention and softmax is a plan of the library, made once; the rest are the loops
// of elementwise.hpp, always on the CPU. Where plans run on a GPU, the arrays between the two go
// over as machine.hpp says.
//
// With ranks, each computes its heads and its hidden units (Shoeybi et al., arXiv:1909.08053): qkv
// and up have the rank's columns, projection and down its rows, and the two sums over ranks of a
// layer, and those of its gradients, are one operation with their matmul. Everything else, the
// residual stream included, is the same on every rank.
//
// Or, for long contexts, each computes some positions of every sequence: attention alone needs
// those of the others, and is context-parallel. Then a rank has all weights, and its gradient is
// what its positions give.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "elementwise.hpp"
#include "linear.hpp"

namespace gpt {

// Which dropout masks are drawn. Every training step has its number; within the model, so has every
// layer of every step.
struct Draw {
  uint64_t seed = 0;
  uint64_t number = 0;
};

template <class T>
class Model {
 public:
  using R = Real<T>;
  enum class Use { kTraining, kInference };

  // Plans and memory for `batch` sequences of the configuration's context. With ranks, weights and
  // gradient are those of the rank's Cut, and all ranks call the same functions.
  Model(Machine& machine, const Config& config, int64_t batch, Use use,
        const Ranks* ranks = nullptr);

  // Runs tokens [batch, context]; `draw` is that of dropout, if there is any.
  void forward(const Weights<T>& weights, const uint8_t* tokens, Draw draw = {});
  // The mean of -ln p(target) over the last forward: all, or the first `sequences`.
  double loss(const uint8_t* targets) const { return loss(targets, batch_); }
  double loss(const uint8_t* targets, int64_t sequences) const;
  // The gradient of that loss. The model must be for training, and the last forward with the same
  // weights, tokens and dropout.
  void backward(const Weights<T>& weights, const uint8_t* tokens, const uint8_t* targets,
                Shared<R>& gradient, Draw draw = {});

  // ln p(next byte), [batch * context, 256], of the last forward of one rank.
  const Shared<R>& log_probabilities() const { return log_probabilities_; }

 private:
  static constexpr bool kRounds = !std::is_same_v<T, R>;

  // What forward leaves for backward. Inference uses one for all layers.
  struct Layer {
    Shared<R> input, middle;              // residual stream [rows, width]
    Shared<R> input_scale, middle_scale;  // of the norms [rows]
    Shared<T> input_norm, middle_norm;    // [rows, width]
    Shared<T> qkv;                        // [rows, 3 attended]
    Shared<T> attended;                   // [rows, attended]
    Shared<R> lse;                        // [batch, heads, context]
    Shared<T> up, gelu;                   // [rows, hidden]
  };

  Layer& layer(int64_t index) { return layers_[training_ ? static_cast<size_t>(index) : 0]; }
  // grad_stream_ in T, as norm_backward left it.
  Shared<T>& grad_rounded() {
    if constexpr (kRounds) {
      return grad_stream_rounded_;
    } else {
      return grad_stream_;
    }
  }
  // The bytes at this rank's positions, of [batch, context].
  const uint8_t* own(const uint8_t* bytes);
  // [batch, positions, heads, head_dim] within rows of `stride` elements, from column `offset`.
  perseid::Tensor heads(const Shared<T>& rows, int64_t stride, int64_t offset) const;
  perseid::Tensor heads_to_write(Shared<T>& rows, int64_t stride, int64_t offset) const;
  Draw of_layer(Draw step, int64_t index) const {
    return {step.seed,
            step.number * static_cast<uint64_t>(config_.layers) + static_cast<uint64_t>(index)};
  }
  void attend(Layer& at, Draw draw);
  void attend_backward(Layer& at, Draw draw);
  void norm_backward(const Shared<R>& x, const Shared<R>& scale);
  void layer_forward(const Weights<T>& weights, const LayerMatrices& matrices, Layer& at,
                     Shared<R>& output, Draw draw);
  void layer_backward(const Weights<T>& weights, const LayerMatrices& matrices, Layer& at,
                      Shared<R>& gradient, Draw draw);

  Machine& machine_;
  Config config_;
  const Ranks* ranks_;
  std::vector<int64_t> positions_;  // of every sequence, this rank's
  int64_t length_, batch_, rows_;   // length_: how many
  bool training_;
  Share share_;
  int64_t attended_;  // width of the rank's heads
  Cut cut_;

  Linear<T> qkv_, projection_, up_, down_, head_;
  std::variant<perseid::Attention, perseid::ContextAttention> attention_;
  perseid::Softmax log_softmax_, log_softmax_backward_;
  RotaryTable<R> rotary_;

  std::vector<uint8_t> own_;
  std::vector<Layer> layers_;
  Shared<R> output_, output_scale_;
  Shared<T> output_norm_;
  Shared<R> log_probabilities_;  // [rows, 256]

  // Gradients on their way back (training).
  Shared<R> grad_log_probabilities_;
  Shared<T> grad_logits_;
  Shared<R> grad_stream_;          // of the residual stream [rows, width]
  Shared<T> grad_stream_rounded_;  // the same in T; unused where T is R
  Shared<T> grad_branch_;          // of a branch's input [rows, width]
  Shared<T> grad_attended_;        // [rows, attended]
  Shared<T> grad_qkv_;             // [rows, 3 attended]
  Shared<T> grad_hidden_;          // [rows, hidden]
};

}  // namespace gpt
