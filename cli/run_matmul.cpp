// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arriving.hpp"
#include "commands.hpp"
#include "harness/placement.hpp"
#include "help.hpp"
#include "run.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

struct Flags {
  std::string a, b, out, c, bias;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1;
  std::optional<double> beta;
  std::optional<int64_t> chunks;
  std::optional<std::string> chunk_dim, arrival_order;
  std::optional<int64_t> pivot;
  std::optional<uint64_t> arrival_delay;  // microseconds
  std::optional<double> deadline;         // milliseconds
};

constexpr double kLongestDeadline = 9e12;  // milliseconds: in nanoseconds it fits 64 bits

// None without --chunks.
struct Arriving : ArrivingOperand {
  std::vector<Delivery> order;
};

// The chunks of --arrival-order, each once. Without it: from the pivot round.
std::vector<int64_t> read_order(const Flags& flags, int64_t count, int64_t pivot) {
  std::vector<int64_t> order;
  if (!flags.arrival_order) {
    for (int64_t visit = 0; visit < count; ++visit) order.push_back((pivot + visit) % count);
    return order;
  }
  const std::string& text = *flags.arrival_order;
  std::vector<bool> named(static_cast<size_t>(count));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int64_t chunk = -1;
    const auto parsed = std::from_chars(text.data() + at, text.data() + end, chunk);
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + end || chunk < 0 || chunk >= count)
      bad_input(fmt::format("--arrival-order lists chunks from 0 to {}, got '{}'", count - 1,
                            text.substr(at, end - at)));
    if (named[static_cast<size_t>(chunk)])
      bad_input(fmt::format("--arrival-order names chunk {} twice: each arrives once", chunk));
    named[static_cast<size_t>(chunk)] = true;
    order.push_back(chunk);
    at = end + 1;
  }
  return order;
}

Arriving read_arriving(const Flags& flags, const Tensor& a, const Tensor& b) {
  if (!flags.chunks) {
    if (flags.chunk_dim || flags.arrival_order || flags.pivot || flags.arrival_delay ||
        flags.deadline)
      bad_input(
          "--chunk-dim, --pivot, --arrival-order, --arrival-delay and --deadline say how chunks "
          "arrive; say with --chunks how many there are");
    return {};
  }
  const std::string dim = flags.chunk_dim.value_or("m");
  if (dim != "m" && dim != "n" && dim != "k")
    bad_input(fmt::format("--chunk-dim must be m, n or k, got '{}'", dim));
  const int64_t size = dim == "m" ? a.size(-2) : dim == "n" ? b.size(-1) : a.size(-1);
  const int64_t count = *flags.chunks;
  if (count < 1 || count > std::min<int64_t>(size, PERSEID_MAX_CHUNKS))
    bad_input(fmt::format("--chunks must be from 1 to {}, as {} is {}; got {}",
                          std::min<int64_t>(size, PERSEID_MAX_CHUNKS), dim, size, count));
  const ChunkDim of = dim == "m" ? ChunkDim::kM : dim == "n" ? ChunkDim::kN : ChunkDim::kK;
  Arriving arriving{ArrivingOperand::cut(a, b, dim != "n", of, count), {}};
  arriving.pivot = flags.pivot.value_or(0);
  if (arriving.pivot < 0 || arriving.pivot >= count)
    bad_input(fmt::format("--pivot must be from 0 to {}, one of the chunks; got {}", count - 1,
                          arriving.pivot));
  if (dim == "k" && arriving.pivot != 0)
    bad_input(
        fmt::format("--pivot must be 0 with --chunk-dim k, which is summed in ascending "
                    "order; got {}",
                    arriving.pivot));
  const double deadline = flags.deadline.value_or(30000);
  if (!(deadline > 0) || deadline > kLongestDeadline)
    bad_input(fmt::format("--deadline must be a time above 0 in milliseconds, got {}", deadline));
  arriving.deadline = std::chrono::nanoseconds(std::max<int64_t>(std::llround(deadline * 1e6), 1));
  constexpr uint64_t kLongestDelay = 1'000'000'000'000;
  const uint64_t delay = flags.arrival_delay.value_or(0);
  if (delay > kLongestDelay)
    bad_input(fmt::format("--arrival-delay must be at most {} microseconds, got {}", kLongestDelay,
                          delay));
  for (const int64_t chunk : read_order(flags, count, arriving.pivot))
    arriving.order.push_back(
        {chunk, std::chrono::microseconds(arriving.order.empty() ? 0 : delay)});
  return arriving;
}

Tensor read_matrix(TensorFiles& files, const char* flag, const std::string& reference, DType wanted,
                   bool transpose) {
  const Tensor matrix = files.read(flag, reference, wanted);
  if (matrix.ndim() != 2 && matrix.ndim() != 3)
    bad_input(
        fmt::format("{} must have 2 dimensions, or 3 with a batch first; {} has shape {}: "
                    "reshape it",
                    flag, reference, harness::to_text(shape_of(matrix))));
  return transpose ? matrix.transposed() : matrix;
}

int run_matmul(const Common& common, const Flags& flags) {
  TensorFiles files;
  Run run(common, "matmul");
  const DType wanted = wanted_dtype(common);
  const Tensor a = read_matrix(files, "--a", flags.a, wanted, flags.transpose_a);
  const Tensor b = read_matrix(files, "--b", flags.b, wanted, flags.transpose_b);
  if (a.size(-1) != b.size(-2))
    bad_input(
        fmt::format("the columns of --a and the rows of --b must be equal; got {} and {}: "
                    "--transpose-a and --transpose-b swap rows and columns",
                    a.size(-1), b.size(-2)));
  if (a.ndim() == 3 && b.ndim() == 3 && a.size(0) != b.size(0))
    bad_input(
        fmt::format("--a and --b must have the same batch; got {} and {}: give one of them 2 "
                    "dimensions to use it for the whole batch",
                    a.size(0), b.size(0)));
  if (flags.c.empty() && flags.beta && *flags.beta != 0)
    bad_input("--beta is the factor of --c, which is not given");
  const bool batched = a.ndim() == 3 || b.ndim() == 3;
  const int64_t batch = a.ndim() == 3 ? a.size(0) : batched ? b.size(0) : 1;
  const Tensor c0 = flags.c.empty() ? Tensor() : files.read("--c", flags.c, wanted);
  const Tensor bias = flags.bias.empty() ? Tensor() : files.read("--bias", flags.bias, wanted);
  same_dtype({{"--a", a}, {"--b", b}, {"--c", c0}, {"--bias", bias}});

  Arriving read = read_arriving(flags, a, b);
  const Context context = open_context(common, common.threads);
  const Arriving arriving = std::move(read);  // freed before the context, whose memory it uses
  const Matmul matmul(context, {.dtype = a.dtype(),
                                .batch = batch,
                                .m = a.size(-2),
                                .n = b.size(-1),
                                .k = a.size(-1),
                                .alpha = flags.alpha,
                                .beta = flags.beta.value_or(flags.c.empty() ? 0 : 1),
                                .bias = bias.present(),
                                .async_a = arriving.chunks_of(true),
                                .async_b = arriving.chunks_of(false),
                                .implementation = wanted_implementation(common)});
  const Memory workspace(context, matmul.workspace_size());
  harness::Shape shape = {a.size(-2), b.size(-1)};
  if (batched) shape.insert(shape.begin(), batch);
  const Tensor c = files.result("--out", flags.out, a.dtype(), shape);
  harness::Placement placement(context);
  if (arriving) arriving.matrix->start(context, arriving.order);
  const auto operand = [&](const Tensor& matrix, bool is_a) {
    return arriving.is(is_a) ? arriving.matrix->tensor() : placement.place(matrix);
  };
  const MatmulArguments arguments = {.a = operand(a, true),
                                     .b = operand(b, false),
                                     .c0 = placement.place(c0),
                                     .bias = placement.place(bias),
                                     .c = placement.place(c),
                                     .arrival_a = arriving.arrival_of(true),
                                     .arrival_b = arriving.arrival_of(false)};
  const Stream stream = stream_of_thread(context);
  run.timed([&] {
    matmul.execute(stream, arguments, {workspace});
    context.synchronize(stream);
  });
  placement.fetch(c);
  run.finish(files, matmul.info().implementation);
  return kOk;
}

}  // namespace

void add_run_matmul(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = run.add_subcommand("matmul", "out = alpha a b + beta c + bias");
  const auto file = [&](const char* flag, std::string& reference, const char* help) {
    return app->add_option(flag, reference, help)->type_name(kFile);
  };
  file("--a", flags->a, "[m, k], or [batch, m, k]")->required();
  file("--b", flags->b, "[k, n], or [batch, k, n]")->required();
  file("--out", flags->out, "the result")->required();
  app->add_flag("--transpose-a", flags->transpose_a, "a lies as [k, m]");
  app->add_flag("--transpose-b", flags->transpose_b, "b lies as [n, k]");
  app->add_option("--alpha", flags->alpha, "factor of the product")->capture_default_str();
  app->add_option("--beta", flags->beta, "factor of --c (1 where that is given)");
  file("--c", flags->c, "what is added to, in the shape of the result");
  file("--bias", flags->bias, "[n], added to every row");
  app->add_option(
      "--chunks", flags->chunks,
      "a (b for n) arrives in so many chunks while the product runs: chunk c of N holds "
      "[c*M/N, (c+1)*M/N)");
  app->add_option("--chunk-dim", flags->chunk_dim,
                  "what is cut: rows of a, columns of b, or depth (m)")
      ->type_name("m|n|k");
  app->add_option("--pivot", flags->pivot, "the chunk that is used first (0)");
  app->add_option("--arrival-order", flags->arrival_order,
                  "chunks in the order of their arrival, such as 2,0,1; one that is left out never "
                  "arrives (from the pivot round)")
      ->type_name("LIST");
  app->add_option("--arrival-delay", flags->arrival_delay, "microseconds between arrivals (0)")
      ->check(not_negative());
  app->add_option("--deadline", flags->deadline,
                  "milliseconds that a chunk is waited for; then the exit code is 5 (30000)");
  app->footer("Example:\n  perseid run matmul --a a.npy --b b.npy --transpose-b --out c.npy");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_matmul(common, *flags); };
  });
}

}  // namespace perseid::cli
