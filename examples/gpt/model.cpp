// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

namespace gpt {
namespace {

using AnyAttention = std::variant<perseid::Attention, perseid::ContextAttention>;

AnyAttention make_attention(const Machine& machine, const Config& config, const Ranks* ranks,
                            const perseid::AttentionOptions& options) {
  if (ranks == nullptr || !ranks->divide_context())
    return perseid::Attention(machine.context, options);
  return perseid::ContextAttention(machine.context, ranks->group(),
                                   {.attention = options, .placement = ranks->placement(config)});
}

std::vector<int64_t> positions_of(const Config& config, const Ranks* ranks) {
  if (ranks != nullptr) return ranks->positions(config);
  std::vector<int64_t> all(static_cast<size_t>(config.context));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Those that divide the weights.
const Ranks* of_tensors(const Ranks* ranks) {
  return ranks == nullptr || ranks->divide_context() ? nullptr : ranks;
}

}  // namespace

template <class T>
Model<T>::Model(Machine& machine, const Config& config, int64_t batch, Use use, const Ranks* ranks)
    : machine_(machine),
      config_(config),
      ranks_(ranks),
      positions_(positions_of(config, ranks)),
      length_(std::ssize(positions_)),
      batch_(batch),
      rows_(batch * length_),
      training_(use == Use::kTraining),
      share_(ranks == nullptr ? share_of(config) : ranks->share(config)),
      attended_(share_.heads * config.head_dim()),
      cut_(config, share_),
      qkv_(machine, rows_, config.width, 3 * attended_, Linear<T>::Output::kT, of_tensors(ranks),
           Linear<T>::Has::kColumns),
      projection_(machine, rows_, attended_, config.width, Linear<T>::Output::kResidual,
                  of_tensors(ranks), Linear<T>::Has::kRows),
      up_(machine, rows_, config.width, share_.hidden, Linear<T>::Output::kT, of_tensors(ranks),
          Linear<T>::Has::kColumns),
      down_(machine, rows_, share_.hidden, config.width, Linear<T>::Output::kResidual,
            of_tensors(ranks), Linear<T>::Has::kRows),
      head_(machine, rows_, config.width, kVocabulary, Linear<T>::Output::kReal),
      attention_(make_attention(machine, config, ranks,
                                {.dtype = perseid::dtype_of<T>,
                                 .batch = batch,
                                 .heads = share_.heads,
                                 .q_len = length_,
                                 .kv_len = length_,
                                 .head_dim = config.head_dim(),
                                 .mask = perseid::causal_top_left(),
                                 .dropout = training_ ? config.dropout : 0,
                                 .backward = training_,
                                 .deterministic = true})),
      log_softmax_(machine.context,
                   {.dtype = perseid::dtype_of<R>, .shape = {rows_, kVocabulary}, .log = true}),
      log_softmax_backward_(machine.context, {.dtype = perseid::dtype_of<T>,
                                              .out_dtype = perseid::dtype_of<R>,
                                              .shape = {rows_, kVocabulary},
                                              .log = true}),
      rotary_(positions_, config.head_dim()) {
  using perseid::Direction;
  std::visit(
      [&](const perseid::Plan& attention) {
        machine.reserve(attention, {Direction::kForward});
        if (training_) machine.reserve(attention, {Direction::kBackward});
      },
      attention_);
  machine.reserve(log_softmax_, {Direction::kForward});
  machine.reserve(log_softmax_backward_, {Direction::kBackward});

  const int64_t width = config.width;
  for (int64_t i = 0; i < (training_ ? config.layers : 1); ++i) {
    Layer layer;
    layer.input = Shared<R>(machine, rows_ * width);
    layer.middle = Shared<R>(machine, rows_ * width);
    layer.input_scale = Shared<R>(machine, rows_);
    layer.middle_scale = Shared<R>(machine, rows_);
    layer.input_norm = Shared<T>(machine, rows_ * width);
    layer.middle_norm = Shared<T>(machine, rows_ * width);
    layer.qkv = Shared<T>(machine, rows_ * 3 * attended_);
    layer.attended = Shared<T>(machine, rows_ * attended_);
    layer.lse = Shared<R>(machine, rows_ * share_.heads);
    layer.up = Shared<T>(machine, rows_ * share_.hidden);
    layer.gelu = Shared<T>(machine, rows_ * share_.hidden);
    layers_.push_back(std::move(layer));
  }
  output_ = Shared<R>(machine, rows_ * width);
  output_scale_ = Shared<R>(machine, rows_);
  output_norm_ = Shared<T>(machine, rows_ * width);
  log_probabilities_ = Shared<R>(machine, rows_ * kVocabulary);
  if (!training_) return;
  grad_log_probabilities_ = Shared<R>(machine, rows_ * kVocabulary);
  grad_logits_ = Shared<T>(machine, rows_ * kVocabulary);
  grad_stream_ = Shared<R>(machine, rows_ * width);
  if (!std::is_same_v<T, R>) grad_stream_rounded_ = Shared<T>(machine, rows_ * width);
  grad_branch_ = Shared<T>(machine, rows_ * width);
  grad_attended_ = Shared<T>(machine, rows_ * attended_);
  grad_qkv_ = Shared<T>(machine, rows_ * 3 * attended_);
  grad_hidden_ = Shared<T>(machine, rows_ * share_.hidden);
}

template <class T>
perseid::Tensor Model<T>::heads(const Shared<T>& rows, int64_t stride, int64_t offset) const {
  return rows.reading({batch_, length_, share_.heads, config_.head_dim()}, offset,
                      {length_ * stride, stride, config_.head_dim(), 1});
}
template <class T>
perseid::Tensor Model<T>::heads_to_write(Shared<T>& rows, int64_t stride, int64_t offset) const {
  return rows.writing({batch_, length_, share_.heads, config_.head_dim()}, offset,
                      {length_ * stride, stride, config_.head_dim(), 1});
}

template <class T>
void Model<T>::attend(Layer& at, Draw draw) {
  const int64_t stride = 3 * attended_;
  rotate(machine_.threads, rotary_, Turn::kForward, rows_, 2 * share_.heads, stride,
         at.qkv.change());
  const perseid::AttentionForward arguments{.query = heads(at.qkv, stride, 0),
                                            .key = heads(at.qkv, stride, attended_),
                                            .value = heads(at.qkv, stride, 2 * attended_),
                                            .out = heads_to_write(at.attended, attended_, 0),
                                            .lse = at.lse.writing({batch_, share_.heads, length_}),
                                            .seed = draw.seed,
                                            .offset = draw.number};
  std::visit(
      [&](const auto& attention) { attention.forward(nullptr, arguments, machine_.workspace()); },
      attention_);
}

// From grad_attended_, the gradient of the attended rows, to grad_qkv_.
template <class T>
void Model<T>::attend_backward(Layer& at, Draw draw) {
  const int64_t stride = 3 * attended_;
  const perseid::AttentionBackward arguments{
      .query = heads(at.qkv, stride, 0),
      .key = heads(at.qkv, stride, attended_),
      .value = heads(at.qkv, stride, 2 * attended_),
      .out = heads(at.attended, attended_, 0),
      .lse = at.lse.reading({batch_, share_.heads, length_}),
      .grad_out = heads(grad_attended_, attended_, 0),
      .grad_query = heads_to_write(grad_qkv_, stride, 0),
      .grad_key = heads_to_write(grad_qkv_, stride, attended_),
      .grad_value = heads_to_write(grad_qkv_, stride, 2 * attended_),
      .seed = draw.seed,
      .offset = draw.number};
  std::visit(
      [&](const auto& attention) { attention.backward(nullptr, arguments, machine_.workspace()); },
      attention_);
  rotate(machine_.threads, rotary_, Turn::kBackward, rows_, 2 * share_.heads, stride,
         grad_qkv_.change());
}

// Adds what grad_branch_, the gradient of norm(x), says of x to grad_stream_.
template <class T>
void Model<T>::norm_backward(const Shared<R>& x, const Shared<R>& scale) {
  R* sum = grad_stream_.change();
  gpt::norm_backward(machine_.threads, x.read(), scale.read(), grad_branch_.read(), rows_,
                     config_.width, sum, grad_rounded().write());
}

template <class T>
void Model<T>::layer_forward(const Weights<T>& weights, const LayerMatrices& matrices, Layer& at,
                             Shared<R>& output, Draw draw) {
  auto& threads = machine_.threads;
  const int64_t width = config_.width;

  norm(threads, at.input.read(), rows_, width, at.input_norm.write(), at.input_scale.write());
  qkv_.forward(machine_, at.input_norm, weights, matrices.qkv, at.qkv);
  attend(at, draw);
  projection_.forward(machine_, at.attended, weights, matrices.projection, at.middle, &at.input);

  norm(threads, at.middle.read(), rows_, width, at.middle_norm.write(), at.middle_scale.write());
  up_.forward(machine_, at.middle_norm, weights, matrices.up, at.up);
  gelu(threads, at.up.read(), rows_ * share_.hidden, at.gelu.write());
  down_.forward(machine_, at.gelu, weights, matrices.down, output, &at.middle);
}

// grad_stream_ goes from the gradient of the layer's output to that of its input.
template <class T>
void Model<T>::layer_backward(const Weights<T>& weights, const LayerMatrices& matrices, Layer& at,
                              Shared<R>& gradient, Draw draw) {
  down_.backward(machine_, at.gelu, weights, matrices.down, grad_rounded(), grad_hidden_, gradient);
  gelu_backward(machine_.threads, at.up.read(), rows_ * share_.hidden, grad_hidden_.change());
  up_.backward(machine_, at.middle_norm, weights, matrices.up, grad_hidden_, grad_branch_,
               gradient);
  norm_backward(at.middle, at.middle_scale);

  projection_.backward(machine_, at.attended, weights, matrices.projection, grad_rounded(),
                       grad_attended_, gradient);
  attend_backward(at, draw);
  qkv_.backward(machine_, at.input_norm, weights, matrices.qkv, grad_qkv_, grad_branch_, gradient);
  norm_backward(at.input, at.input_scale);
}

template <class T>
void Model<T>::forward(const Weights<T>& weights, const uint8_t* tokens, Draw draw) {
  auto& threads = machine_.threads;
  embed(threads, weights.real().read() + cut_.embedding.offset, own(tokens), rows_, config_.width,
        layer(0).input.write());
  for (int64_t i = 0; i < config_.layers; ++i) {
    const bool last = i + 1 == config_.layers;
    layer_forward(weights, cut_.layers[static_cast<size_t>(i)], layer(i),
                  last ? output_ : layer(i + 1).input, of_layer(draw, i));
  }
  norm(threads, output_.read(), rows_, config_.width, output_norm_.write(), output_scale_.write());
  head_.forward(machine_, output_norm_, weights, cut_.head, log_probabilities_);
  const perseid::Tensor logits = log_probabilities_.writing({rows_, kVocabulary});
  log_softmax_.forward(nullptr, {.input = logits, .output = logits}, machine_.workspace());
}

template <class T>
const uint8_t* Model<T>::own(const uint8_t* bytes) {
  own_.clear();
  for (int64_t sequence = 0; sequence < batch_; ++sequence)
    for (const int64_t position : positions_)
      own_.push_back(bytes[sequence * config_.context + position]);
  return own_.data();
}

template <class T>
double Model<T>::loss(const uint8_t* targets, int64_t sequences) const {
  const R* row = log_probabilities_.read();
  double total = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence)
    for (const int64_t position : positions_) {
      total -= static_cast<double>(row[targets[sequence * config_.context + position]]);
      row += kVocabulary;
    }
  if (ranks_ != nullptr && ranks_->divide_context()) {
    const std::vector<double> all = ranks_->gather({total});
    total = std::accumulate(all.begin(), all.end(), 0.0);
  }
  return total / static_cast<double>(sequences * config_.context);
}

template <class T>
void Model<T>::backward(const Weights<T>& weights, const uint8_t* tokens, const uint8_t* targets,
                        Shared<R>& gradient, Draw draw) {
  // The loss picks one log-probability of each row.
  R* picks = grad_log_probabilities_.write();
  std::fill_n(picks, rows_ * kVocabulary, R(0));
  const uint8_t* own_targets = own(targets);
  for (int64_t row = 0; row < rows_; ++row) {
    picks[row * kVocabulary + own_targets[row]] = R(-1) / static_cast<R>(batch_ * config_.context);
  }
  log_softmax_backward_.backward(
      nullptr,
      {.grad_output = grad_log_probabilities_.reading({rows_, kVocabulary}),
       .output = log_probabilities_.reading({rows_, kVocabulary}),
       .grad_input = grad_logits_.writing({rows_, kVocabulary})},
      machine_.workspace());
  head_.backward(machine_, output_norm_, weights, cut_.head, grad_logits_, grad_branch_, gradient);
  std::fill_n(grad_stream_.write(), rows_ * config_.width, R(0));
  norm_backward(output_, output_scale_);

  for (int64_t i = config_.layers; i-- > 0;) {
    layer_backward(weights, cut_.layers[static_cast<size_t>(i)], layer(i), gradient,
                   of_layer(draw, i));
  }
  embed_backward(machine_.threads, grad_stream_.read(), own(tokens), rows_, kVocabulary,
                 config_.width, gradient.change() + cut_.embedding.offset);
}

template class Model<float>;
template class Model<BFloat16>;
template class Model<double>;

}  // namespace gpt
