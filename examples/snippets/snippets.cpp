// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The examples of the API reference for perseid.hpp. Takes the folder to write to.
#include <cstdio>
#include <cstdlib>
#include <perseid/perseid.hpp>
#include <string>
#include <vector>

//! [dtype_of]
struct Half {
  uint16_t bits;
};
template <>
inline constexpr perseid::DType perseid::dtype_of<Half> = perseid::f16;
//! [dtype_of]

//! [executor]
class OneThread : public perseid::Executor {
 public:
  int32_t workers() const noexcept override { return 1; }
  void run(int64_t tasks, Task task) noexcept override {
    for (int64_t t = 0; t < tasks; ++t) task(t, 0);
  }
};
//! [executor]

static void require(bool condition, int line) {
  if (condition) return;
  std::fprintf(stderr, "line %d is wrong\n", line);
  std::exit(1);
}
#define REQUIRE(condition) require(condition, __LINE__)

static void devices() {
  //! [context]
  const auto all = perseid::Context::cpu();
  const auto two = perseid::Context::cpu(2);
  //! [context]
  //! [executor_use]
  OneThread executor;
  const auto own = perseid::Context::cpu(executor);
  //! [executor_use]
  //! [error]
  //! [cuda]
  try {
    const auto gpu = perseid::Context::cuda(0);
  } catch (const perseid::Error& error) {
    std::printf("status %d: %s\n", error.status(), error.what());
  }
  //! [cuda]
  //! [error]
  //! [assume]
  const auto ampere = perseid::Context::assumed("sm_80");
  const perseid::Attention planned(
      ampere,
      {.dtype = perseid::DType::kBF16, .heads = 8, .q_len = 512, .kv_len = 512, .head_dim = 64});
  std::printf("%s\n", std::string(planned.info().implementation).c_str());
  //! [assume]
  //! [version]
  std::printf("libperseid %s\n", std::string(perseid::version()).c_str());
  //! [version]
  //! [facts]
  std::printf("%s\n", std::string(two.facts()).c_str());
  std::printf("%.0f GFLOP/s\n", two.ceiling(perseid::Ceiling::kF32) * 1e-9);
  //! [facts]
  //! [log]
  perseid::set_log([](perseid_log_level, std::string_view message) {
    std::printf("%.*s\n", static_cast<int>(message.size()), message.data());
  });
  //! [log]

  //! [memory]
  const std::vector<float> host = {1, 2, 3, 4};
  const perseid::Memory memory(two, host.size() * sizeof(float));
  two.copy(memory.data(), host.data(), memory.size());
  const perseid::Tensor tensor(memory.data(), perseid::f32, {2, 2}, {}, two.device());
  //! [memory]
  REQUIRE(tensor.data<float>()[3] == 4);
  //! [timer]
  perseid::Timer timer(two);
  timer.start();
  // ... execute plans ...
  timer.stop();
  two.synchronize();
  std::printf("%g us\n", timer.seconds() * 1e6);
  //! [timer]
}

static void tensors() {
  //! [tensor]
  std::vector<float> data(6);
  const perseid::Tensor matrix(data.data(), {2, 3});           // row-major
  const perseid::Tensor columns(data.data(), {3, 2}, {1, 3});  // by strides
  const perseid::Tensor absent;                                // not given
  //! [tensor]
  REQUIRE(matrix.contiguous() && !columns.contiguous() && !absent.present());
  //! [views]
  const auto transposed = matrix.transposed();    // [3, 2]
  const auto permuted = matrix.permuted({1, 0});  // the same
  const auto first_two = matrix.slice(1, 0, 2);   // [2, 2]
  const auto row = matrix.select(0, 1);           // [3]
  const auto flat = matrix.reshaped({6});         // [6]
  //! [views]
  REQUIRE(transposed.size(0) == 3 && permuted.stride(1) == 3 && first_two.elements() == 4 &&
          row.ndim() == 1 && flat.size(0) == 6);
}

static void operations() {
  const auto context = perseid::Context::cpu(1);
  //! [softmax]
  std::vector<float> x = {0, 0, 0, 1, 2, 3}, y(6), dy = {1, 0, 0, 1, 0, 0}, dx(6);
  const auto view = [](std::vector<float>& v) { return perseid::Tensor(v.data(), {2, 3}); };
  perseid::Workspace workspace;
  const perseid::Softmax softmax(context, {.shape = {2, 3}});
  softmax.forward(nullptr, {.input = view(x), .output = view(y)}, workspace);
  softmax.backward(nullptr, {.grad_output = view(dy), .output = view(y), .grad_input = view(dx)},
                   workspace);
  //! [softmax]
  REQUIRE(dx[0] > 0.222f && dx[0] < 0.223f);

  //! [masks]
  const auto mask = perseid::causal_bottom_right() & perseid::window(1023, -1);
  //! [masks]
  //! [attention]
  std::vector<float> q(32, 1), k(48, 1), v(48, 1), o(32), lse(4);
  const perseid::Tensor query(q.data(), {1, 2, 2, 8}), key(k.data(), {1, 3, 2, 8});
  const perseid::Tensor value(v.data(), {1, 3, 2, 8}), out(o.data(), {1, 2, 2, 8});
  const perseid::Tensor logs(lse.data(), {1, 2, 2});
  const perseid::Attention attention(
      context,
      {.heads = 2, .q_len = 2, .kv_len = 3, .head_dim = 8, .mask = mask, .backward = true});
  attention.forward(nullptr, {.query = query, .key = key, .value = value, .out = out, .lse = logs},
                    workspace);
  //! [attention]
  REQUIRE(o[0] > 0.999f && o[0] < 1.001f);
  //! [attention_backward]
  std::vector<float> d_out(32, 1), dq(32);
  attention.backward(nullptr,
                     {.query = query,
                      .key = key,
                      .value = value,
                      .out = out,
                      .lse = logs,
                      .grad_out = perseid::Tensor(d_out.data(), {1, 2, 2, 8}),
                      .grad_query = perseid::Tensor(dq.data(), {1, 2, 2, 8})},
                     workspace);
  //! [attention_backward]
  //! [workspace]
  attention.reserve(workspace);  // from here on no execution allocates
  std::printf("%zu bytes\n", attention.workspace_size(perseid::Direction::kBackward));
  //! [workspace]
  //! [explain]
  std::printf("%s\n%s\n", attention.info().implementation, attention.explain().c_str());
  const std::string json = attention.explain_json();
  //! [explain]
  //! [dropout_mask]
  std::vector<uint8_t> kept(12);
  perseid::fill_dropout_mask(context, 0.1, /*seed*/ 7, /*offset*/ 0, {kept.data(), {1, 2, 2, 3}});
  //! [dropout_mask]
  //! [ragged]
  const std::vector<int64_t> lengths = {2, 0, 1};  // of sequences padded to 2 rows of 4 numbers
  std::vector<int32_t> ends(4);
  std::vector<float> padded(3 * 2 * 4, 1), packed(3 * 4);
  const perseid::Tensor cu_seqlens(ends.data(), {4});
  const perseid::Tensor wide(padded.data(), {3, 2, 4}), narrow(packed.data(), {3, 4});
  perseid::ragged_lengths(context, {lengths.data(), {3}}, /*longest*/ 2, /*total*/ 3, cu_seqlens);
  perseid::pack(context, wide, cu_seqlens, narrow);
  perseid::unpack(context, narrow, cu_seqlens, wide);
  //! [ragged]
  //! [sequences]
  // Two sequences, of 3 and of 1 tokens, whose tensors lie anywhere.
  std::vector<float> tokens(4 * 2 * 8, 0.5f), attended(tokens.size()), gradient(tokens.size());
  const perseid::Tensor of_tokens[] = {{tokens.data(), {3, 2, 8}}, {&tokens[48], {1, 2, 8}}};
  const perseid::Tensor results[] = {{attended.data(), {3, 2, 8}}, {&attended[48], {1, 2, 8}}};
  const perseid::Tensor gradients[] = {{gradient.data(), {3, 2, 8}}, {&gradient[48], {1, 2, 8}}};
  const int64_t sequence_lengths[] = {3, 1};
  perseid::SequenceAttention over_sequences(
      context, {.heads = 2, .head_dim = 8, .mask = perseid::causal_top_left(), .backward = true},
      sequence_lengths, sequence_lengths);
  over_sequences.forward(
      nullptr, {.query = of_tokens, .key = of_tokens, .value = of_tokens, .out = results});
  over_sequences.backward(nullptr, {.grad_out = results, .grad_query = gradients});
  std::printf("%s\n", over_sequences.plan().info().implementation);
  //! [sequences]
  //! [matmul]
  std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 1, 0, 1, 1}, c(4);
  const perseid::Matmul matmul(context, {.m = 2, .n = 2, .k = 3});
  matmul.execute(nullptr,
                 {.a = perseid::Tensor(a.data(), {2, 3}),
                  .b = perseid::Tensor(b.data(), {2, 3}).transposed(),  // stored as [n, k]
                  .c = perseid::Tensor(c.data(), {2, 2})},
                 workspace);
  //! [matmul]
  //! [matmul_tuned]
  const perseid::Matmul tuned =
      perseid::Matmul::tuned(context, {.m = 2, .n = 2, .k = 3},
                             {.a = perseid::Tensor(a.data(), {2, 3}),
                              .b = perseid::Tensor(b.data(), {2, 3}).transposed(),
                              .c = perseid::Tensor(c.data(), {2, 2})});
  //! [matmul_tuned]

  //! [chunks]
  const auto columns = perseid::Chunks::even(2, 2);  // b arrives column by column
  const perseid::Matmul streamed(context, {.m = 2, .n = 2, .k = 3, .async_b = columns});
  uint32_t signals[2] = {0, 0};
  for (uint32_t& signal : signals) perseid::set_signal(&signal, 1);  // as each column is written
  streamed.execute(nullptr,
                   {.a = perseid::Tensor(a.data(), {2, 3}),
                    .b = perseid::Tensor(b.data(), {2, 3}).transposed(),
                    .c = perseid::Tensor(c.data(), {2, 2}),
                    .arrival_b = {.signals = signals, .epoch = 1}},
                   workspace);
  perseid::wait_for_signal(&signals[1], 1);
  perseid::set_signal(context, &signals[0], 2);  // in the order of a stream
  perseid::wait_for_signal(context, {.signals = signals, .epoch = 2});
  //! [chunks]
  REQUIRE(c[0] == 4 && c[1] == 5 && c[3] == 11 && json[0] == '{');
  //! [key_chunks]
  const perseid::Chunks keys{{0, 1, 3}};  // the first key, then the two others
  const perseid::Attention late(
      context, {.heads = 2, .q_len = 2, .kv_len = 3, .head_dim = 8, .async_kv = keys});
  for (uint32_t& signal : signals) perseid::set_signal(&signal, 3);  // key and value rows are there
  late.forward(nullptr,
               {.query = query,
                .key = key,
                .value = value,
                .out = out,
                .arrival_kv = {.signals = signals, .epoch = 3}},
               workspace);
  //! [key_chunks]
}

static void files(const std::string& folder) {
  //! [files]
  const std::string path = folder + "/snippet_cpp.safetensors";
  std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  perseid::write_file(path, {{"weights", perseid::Tensor(weights.data(), {2, 3})}},
                      {{"step", "100"}});
  const perseid::File file(path);
  const perseid::Tensor by_name = file["weights"], by_index = file[0];
  std::printf("%s, step %s\n", file.names()[0].c_str(), file.metadata("step")->c_str());
  //! [files]
  REQUIRE(by_name.data<float>()[5] == 6 && by_index.size(1) == 3);
  std::remove(path.c_str());
}

int main(int argc, char** argv) {
  try {
    devices();
    tensors();
    operations();
    files(argc > 1 ? argv[1] : ".");
    REQUIRE(perseid::dtype_of<Half> == perseid::f16);
    return 0;
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
