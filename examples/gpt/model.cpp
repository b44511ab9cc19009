// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace gpt {

template <class T>
Model<T>::Model(Machine& machine, const Config& config, int64_t batch, Use use)
    : machine_(machine),
      config_(config),
      batch_(batch),
      rows_(batch * config.context),
      training_(use == Use::kTraining),
      cut_(config),
      qkv_(machine, rows_, config.width, 3 * config.width, Linear<T>::Output::kT),
      projection_(machine, rows_, config.width, config.width, Linear<T>::Output::kResidual),
      up_(machine, rows_, config.width, 4 * config.width, Linear<T>::Output::kT),
      down_(machine, rows_, 4 * config.width, config.width, Linear<T>::Output::kResidual),
      head_(machine, rows_, config.width, kVocabulary, Linear<T>::Output::kReal),
      attention_(machine.context, {.dtype = perseid::dtype_of<T>,
                                   .batch = batch,
                                   .heads = config.heads,
                                   .q_len = config.context,
                                   .kv_len = config.context,
                                   .head_dim = config.head_dim(),
                                   .mask = perseid::causal_top_left(),
                                   .dropout = training_ ? config.dropout : 0,
                                   .backward = training_}),
      log_softmax_(machine.context,
                   {.dtype = perseid::dtype_of<R>, .shape = {rows_, kVocabulary}, .log = true}),
      log_softmax_backward_(machine.context, {.dtype = perseid::dtype_of<T>,
                                              .out_dtype = perseid::dtype_of<R>,
                                              .shape = {rows_, kVocabulary},
                                              .log = true}),
      rotary_(config.context, config.head_dim()) {
  attention_.reserve(machine.workspace);
  log_softmax_.reserve(machine.workspace);
  log_softmax_backward_.reserve(machine.workspace);

  const int64_t width = config.width;
  for (int64_t i = 0; i < (training_ ? config.layers : 1); ++i) {
    Layer layer;
    layer.input = Buffer<R>(rows_ * width);
    layer.middle = Buffer<R>(rows_ * width);
    layer.input_scale = Buffer<R>(rows_);
    layer.middle_scale = Buffer<R>(rows_);
    layer.input_norm = Buffer<T>(rows_ * width);
    layer.middle_norm = Buffer<T>(rows_ * width);
    layer.qkv = Buffer<T>(rows_ * 3 * width);
    layer.attended = Buffer<T>(rows_ * width);
    layer.lse = Buffer<R>(rows_ * config.heads);
    layer.up = Buffer<T>(rows_ * 4 * width);
    layer.gelu = Buffer<T>(rows_ * 4 * width);
    layers_.push_back(std::move(layer));
  }
  output_ = Buffer<R>(rows_ * width);
  output_scale_ = Buffer<R>(rows_);
  output_norm_ = Buffer<T>(rows_ * width);
  log_probabilities_ = Buffer<R>(rows_ * kVocabulary);
  if (!training_) return;
  grad_log_probabilities_ = Buffer<R>(rows_ * kVocabulary);
  grad_logits_ = Buffer<T>(rows_ * kVocabulary);
  grad_stream_ = Buffer<R>(rows_ * width);
  if (!std::is_same_v<T, R>) grad_stream_rounded_ = Buffer<T>(rows_ * width);
  grad_branch_ = Buffer<T>(rows_ * width);
  grad_qkv_ = Buffer<T>(rows_ * 3 * width);
  grad_hidden_ = Buffer<T>(rows_ * 4 * width);
}

// [batch, context, heads, head_dim] within rows of `stride` elements, from column `offset`.
template <class T>
perseid::Tensor Model<T>::heads(const T* rows, int64_t stride, int64_t offset) const {
  return {rows + offset,
          {batch_, config_.context, config_.heads, config_.head_dim()},
          {config_.context * stride, stride, config_.head_dim(), 1}};
}

template <class T>
void Model<T>::attend(Layer& at, Draw draw) {
  const int64_t stride = 3 * config_.width;
  rotate(machine_.threads, rotary_, Turn::kForward, rows_, 2 * config_.heads, stride,
         at.qkv.data());
  attention_.forward(nullptr,
                     {.query = heads(at.qkv.data(), stride, 0),
                      .key = heads(at.qkv.data(), stride, config_.width),
                      .value = heads(at.qkv.data(), stride, 2 * config_.width),
                      .out = heads(at.attended.data(), config_.width, 0),
                      .lse = {at.lse.data(), {batch_, config_.heads, config_.context}},
                      .seed = draw.seed,
                      .offset = draw.number},
                     machine_.workspace);
}

// From grad_branch_, the gradient of the attended rows, to grad_qkv_.
template <class T>
void Model<T>::attend_backward(Layer& at, Draw draw) {
  const int64_t stride = 3 * config_.width;
  attention_.backward(nullptr,
                      {.query = heads(at.qkv.data(), stride, 0),
                       .key = heads(at.qkv.data(), stride, config_.width),
                       .value = heads(at.qkv.data(), stride, 2 * config_.width),
                       .out = heads(at.attended.data(), config_.width, 0),
                       .lse = {at.lse.data(), {batch_, config_.heads, config_.context}},
                       .grad_out = heads(grad_branch_.data(), config_.width, 0),
                       .grad_query = heads(grad_qkv_.data(), stride, 0),
                       .grad_key = heads(grad_qkv_.data(), stride, config_.width),
                       .grad_value = heads(grad_qkv_.data(), stride, 2 * config_.width),
                       .seed = draw.seed,
                       .offset = draw.number},
                      machine_.workspace);
  rotate(machine_.threads, rotary_, Turn::kBackward, rows_, 2 * config_.heads, stride,
         grad_qkv_.data());
}

template <class T>
void Model<T>::layer_forward(const T* weights, const LayerMatrices& matrices, Layer& at, R* output,
                             Draw draw) {
  auto& threads = machine_.threads;
  const int64_t width = config_.width;

  norm(threads, at.input.data(), rows_, width, at.input_norm.data(), at.input_scale.data());
  qkv_.forward(machine_, at.input_norm.data(), weights + matrices.qkv.offset, at.qkv.data());
  attend(at, draw);
  projection_.forward(machine_, at.attended.data(), weights + matrices.projection.offset,
                      at.middle.data(), at.input.data());

  norm(threads, at.middle.data(), rows_, width, at.middle_norm.data(), at.middle_scale.data());
  up_.forward(machine_, at.middle_norm.data(), weights + matrices.up.offset, at.up.data());
  gelu(threads, at.up.data(), rows_ * 4 * width, at.gelu.data());
  down_.forward(machine_, at.gelu.data(), weights + matrices.down.offset, output, at.middle.data());
}

// grad_stream_ goes from the gradient of the layer's output to that of its input.
template <class T>
void Model<T>::layer_backward(const T* weights, const LayerMatrices& matrices, Layer& at,
                              R* gradient, Draw draw) {
  auto& threads = machine_.threads;
  const int64_t width = config_.width;

  down_.backward(machine_, at.gelu.data(), weights + matrices.down.offset, grad_rounded(),
                 grad_hidden_.data(), gradient + matrices.down.offset);
  gelu_backward(threads, at.up.data(), rows_ * 4 * width, grad_hidden_.data());
  up_.backward(machine_, at.middle_norm.data(), weights + matrices.up.offset, grad_hidden_.data(),
               grad_branch_.data(), gradient + matrices.up.offset);
  norm_backward(threads, at.middle.data(), at.middle_scale.data(), grad_branch_.data(), rows_,
                width, grad_stream_.data(), grad_rounded());

  projection_.backward(machine_, at.attended.data(), weights + matrices.projection.offset,
                       grad_rounded(), grad_branch_.data(), gradient + matrices.projection.offset);
  attend_backward(at, draw);
  qkv_.backward(machine_, at.input_norm.data(), weights + matrices.qkv.offset, grad_qkv_.data(),
                grad_branch_.data(), gradient + matrices.qkv.offset);
  norm_backward(threads, at.input.data(), at.input_scale.data(), grad_branch_.data(), rows_, width,
                grad_stream_.data(), grad_rounded());
}

template <class T>
void Model<T>::forward(const Weights<T>& weights, const uint8_t* tokens, Draw draw) {
  auto& threads = machine_.threads;
  embed(threads, weights.real() + cut_.embedding.offset, tokens, rows_, config_.width,
        layer(0).input.data());
  for (int64_t i = 0; i < config_.layers; ++i) {
    const bool last = i + 1 == config_.layers;
    R* output = last ? output_.data() : layer(i + 1).input.data();
    layer_forward(weights.rounded(), cut_.layers[static_cast<size_t>(i)], layer(i), output,
                  of_layer(draw, i));
  }
  norm(threads, output_.data(), rows_, config_.width, output_norm_.data(), output_scale_.data());
  head_.forward(machine_, output_norm_.data(), weights.rounded() + cut_.head.offset,
                log_probabilities_.data());
  const perseid::Tensor logits(log_probabilities_.data(), {rows_, kVocabulary});
  log_softmax_.forward(nullptr, {.input = logits, .output = logits}, machine_.workspace);
}

template <class T>
double Model<T>::loss(const uint8_t* targets, int64_t count) const {
  double total = 0;
  for (int64_t row = 0; row < count; ++row) {
    total -= static_cast<double>(log_probabilities_.data()[row * kVocabulary + targets[row]]);
  }
  return total / static_cast<double>(count);
}

template <class T>
void Model<T>::backward(const Weights<T>& weights, const uint8_t* tokens, const uint8_t* targets,
                        R* gradient, Draw draw) {
  auto& threads = machine_.threads;
  const int64_t width = config_.width;

  // The loss picks one log-probability of each row.
  std::ranges::fill(grad_log_probabilities_.span(), R(0));
  for (int64_t row = 0; row < rows_; ++row) {
    grad_log_probabilities_.data()[row * kVocabulary + targets[row]] =
        R(-1) / static_cast<R>(rows_);
  }
  log_softmax_backward_.backward(
      nullptr,
      {.grad_output = {grad_log_probabilities_.data(), {rows_, kVocabulary}},
       .output = {log_probabilities_.data(), {rows_, kVocabulary}},
       .grad_input = {grad_logits_.data(), {rows_, kVocabulary}}},
      machine_.workspace);
  head_.backward(machine_, output_norm_.data(), weights.rounded() + cut_.head.offset,
                 grad_logits_.data(), grad_branch_.data(), gradient + cut_.head.offset);
  std::ranges::fill(grad_stream_.span(), R(0));
  norm_backward(threads, output_.data(), output_scale_.data(), grad_branch_.data(), rows_, width,
                grad_stream_.data(), grad_rounded());

  for (int64_t i = config_.layers; i-- > 0;) {
    layer_backward(weights.rounded(), cut_.layers[static_cast<size_t>(i)], layer(i), gradient,
                   of_layer(draw, i));
  }
  embed_backward(threads, grad_stream_.data(), tokens, rows_, kVocabulary, width,
                 gradient + cut_.embedding.offset);
}

template class Model<float>;
template class Model<BFloat16>;
template class Model<double>;

}  // namespace gpt
