// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arrival_flags.hpp"
#include "commands.hpp"
#include "harness/placement.hpp"
#include "harness/problem.hpp"
#include "help.hpp"
#include "run.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

struct MatmulFlags {
  std::string a, b, out, c, bias, scale_a, scale_b, scale_result, amax;
  std::string accumulation = "promoted", activation = "none", precision = "default";
  std::string output_dtype;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1;
  std::optional<double> beta;
  std::optional<std::string> chunk_dim;
  ArrivalFlags arrival;
};

// None without --chunks.
struct Arriving : ArrivingOperand {
  std::vector<Delivery> order;
};

Arriving read_arriving(const MatmulFlags& flags, const Tensor& a, const Tensor& b) {
  if (!flags.arrival.chunks && flags.chunk_dim)
    bad_input("--chunk-dim says what chunks cut; say with --chunks how many there are");
  const std::string dim = flags.chunk_dim.value_or("m");
  if (dim != "m" && dim != "n" && dim != "k")
    bad_input(fmt::format("--chunk-dim must be m, n or k, got '{}'", dim));
  const int64_t size = dim == "m" ? a.size(-2) : dim == "n" ? b.size(-1) : a.size(-1);
  PlannedArrival planned = read_arrival(flags.arrival, dim.c_str(), size);
  if (planned.count == 0) return {};
  if (dim == "k" && planned.pivot != 0)
    bad_input(
        fmt::format("--pivot must be 0 with --chunk-dim k, which is summed in ascending "
                    "order; got {}",
                    planned.pivot));
  const ChunkDim of = dim == "m" ? ChunkDim::kM : dim == "n" ? ChunkDim::kN : ChunkDim::kK;
  Arriving arriving{ArrivingOperand::cut(a, b, dim != "n", of, planned.count),
                    std::move(planned.order)};
  arriving.pivot = planned.pivot;
  arriving.deadline = planned.deadline;
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

// ---- 8-bit operands ----

struct Scales {
  Scaling of = Scaling::kNone;
  Tensor a, b;
};

// What shape the scales of one operand may have.
struct ScaleShape {
  bool is_b;
  const Tensor& operand;

  int64_t lines() const { return operand.size(is_b ? -1 : -2); }
  int64_t depth() const { return operand.size(is_b ? -2 : -1); }

  // [lines], also with dimensions of size 1 and a leading batch; a single scale serves all lines.
  bool rows(const Tensor& scales, Tensor* view) const {
    const bool batched = operand.ndim() == 3 && scales.ndim() > 1 &&
                         scales.size(0) == operand.size(0) &&
                         scales.elements() == operand.size(0) * lines();
    if (!batched && scales.elements() != lines() && scales.elements() != 1) return false;
    // One stride leads from line to line: all other sizes are 1, or the batch.
    int64_t stride = 0;
    for (int32_t d = batched ? 1 : 0; d < scales.ndim(); ++d) {
      if (scales.size(d) == 1) continue;
      if (scales.size(d) != lines()) return false;
      stride = scales.stride(d);
    }
    *view = batched
                ? Tensor(scales.data(), f32, {scales.size(0), lines()}, {scales.stride(0), stride})
                : Tensor(scales.data(), f32, {lines()}, {stride});
    return true;
  }

  // As the operand lies, each depth of it by 128, the lines of b too.
  bool blocks(const Tensor& scales, bool transposed, Tensor* view) const {
    if (scales.ndim() != 2 && (scales.ndim() != 3 || scales.ndim() != operand.ndim())) return false;
    *view = transposed ? scales.transposed() : scales;
    const int64_t parts = (depth() + 127) / 128, across = is_b ? (lines() + 127) / 128 : lines();
    return view->size(is_b ? -1 : -2) == across && view->size(is_b ? -2 : -1) == parts &&
           (view->ndim() == 2 || view->size(0) == operand.size(0));
  }
};

// The shapes say what the scales belong to.
Scales read_scales(TensorFiles& files, const MatmulFlags& flags, const Tensor& a, const Tensor& b) {
  if (flags.scale_a.empty() != flags.scale_b.empty())
    bad_input("--scale-a and --scale-b go together");
  if (flags.scale_a.empty()) return {};
  if (!harness::is_float8(a.dtype()))
    bad_input(
        fmt::format("--scale-a and --scale-b are of 8-bit matrices, got {}; say --dtype f8e4m3 "
                    "or f8e5m2, or use --alpha",
                    harness::name_of(a.dtype())));
  const Tensor of_a = files.read("--scale-a", flags.scale_a, f32);
  const Tensor of_b = files.read("--scale-b", flags.scale_b, f32);
  Scales scales;
  if (of_a.elements() == 1 && of_b.elements() == 1)
    return {Scaling::kTensor, Tensor(of_a.data(), f32, {1}), Tensor(of_b.data(), f32, {1})};
  const ScaleShape shape_a{false, a}, shape_b{true, b};
  if (shape_a.rows(of_a, &scales.a) && shape_b.rows(of_b, &scales.b)) {
    scales.of = Scaling::kRow;
  } else if (shape_a.blocks(of_a, flags.transpose_a, &scales.a) &&
             shape_b.blocks(of_b, flags.transpose_b, &scales.b)) {
    scales.of = Scaling::kBlock;
  } else {
    bad_input(fmt::format(
        "--scale-a has shape {} and --scale-b {}, expected one scale each; [{}] and [{}], for the "
        "rows "
        "of a and the columns of b; or [{}, {}] and [{}, {}], for 1 x 128 of a and 128 x 128 of b, "
        "transposed where that is",
        harness::to_text(shape_of(of_a)), harness::to_text(shape_of(of_b)), shape_a.lines(),
        shape_b.lines(), shape_a.lines(), (shape_a.depth() + 127) / 128,
        (shape_a.depth() + 127) / 128, (shape_b.lines() + 127) / 128));
  }
  return scales;
}

Tensor read_scale_result(TensorFiles& files, const MatmulFlags& flags) {
  if (flags.scale_result.empty()) return {};
  const Tensor scale = files.read("--scale-result", flags.scale_result, f32);
  if (scale.elements() != 1)
    bad_input(fmt::format("--scale-result must be one number; {} has shape {}", flags.scale_result,
                          harness::to_text(shape_of(scale))));
  return Tensor(scale.data(), f32, {1});
}

DType read_output_dtype(const MatmulFlags& flags, DType of_a) {
  if (flags.output_dtype.empty()) return harness::is_float8(of_a) ? f32 : of_a;
  const DType dtype = harness::parse_dtype(flags.output_dtype);
  if (!harness::is_floating(dtype))
    bad_input(fmt::format("--output-dtype must be f16, bf16, f32, f64, f8e4m3 or f8e5m2, got '{}'",
                          flags.output_dtype));
  return dtype;
}

template <class Names, size_t Count>
uint32_t read_choice(const char* flag, const std::string& text, const Names (&names)[Count]) {
  for (uint32_t i = 0; i < Count; ++i)
    if (text == names[i]) return i;
  bad_input(fmt::format("{} must be one of {}, got '{}'", flag, fmt::join(names, ", "), text));
}

int run_matmul(const Common& common, const MatmulFlags& flags) {
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
  const bool float8 = harness::is_float8(a.dtype());
  const DType out_dtype = read_output_dtype(flags, a.dtype());
  // What is added to an 8-bit product has more bits.
  const DType added = float8 ? out_dtype : wanted;
  const Tensor c0 = flags.c.empty() ? Tensor() : files.read("--c", flags.c, added);
  const Tensor bias =
      flags.bias.empty() ? Tensor() : files.read("--bias", flags.bias, float8 ? f32 : wanted);
  if (!float8) same_dtype({{"--a", a}, {"--b", b}, {"--c", c0}, {"--bias", bias}});
  if (float8 && !harness::is_float8(b.dtype())) same_dtype({{"--a", a}, {"--b", b}});
  const Scales scales = read_scales(files, flags, a, b);
  const Tensor scale_result = read_scale_result(files, flags);
  const uint32_t accumulation =
      read_choice("--accumulation", flags.accumulation, harness::AccumulationNames::kNames);
  constexpr const char* kPrecisions[] = {"default", "tf32"};
  const uint32_t precision = read_choice("--precision", flags.precision, kPrecisions);
  const uint32_t activation =
      read_choice("--activation", flags.activation, harness::ActivationNames::kNames);

  Arriving read = read_arriving(flags, a, b);
  const Context context = open_context(common, common.threads);
  const Arriving arriving = std::move(read);  // freed before the context, whose memory it uses
  const Matmul matmul(context, {.dtype = a.dtype(),
                                .out_dtype = out_dtype,
                                .batch = batch,
                                .m = a.size(-2),
                                .n = b.size(-1),
                                .k = a.size(-1),
                                .alpha = flags.alpha,
                                .beta = flags.beta.value_or(flags.c.empty() ? 0 : 1),
                                .bias = bias.present(),
                                .b_dtype = b.dtype(),
                                .scaling = scales.of,
                                .accumulation = static_cast<Accumulation>(accumulation),
                                .scale_result = scale_result.present(),
                                .activation = static_cast<Activation>(activation),
                                .amax = !flags.amax.empty(),
                                .async_a = arriving.chunks_of(true),
                                .async_b = arriving.chunks_of(false),
                                .precision = static_cast<perseid_precision>(precision),
                                .implementation = wanted_implementation(common)});
  const Memory workspace(context, matmul.workspace_size());
  harness::Shape shape = {a.size(-2), b.size(-1)};
  if (batched) shape.insert(shape.begin(), batch);
  const Tensor c = files.result("--out", flags.out, out_dtype, shape);
  const Tensor amax = flags.amax.empty()
                          ? Tensor()
                          : files.result("--amax", flags.amax, a.dtype() == f64 ? f64 : f32, {1});
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
                                     .scale_a = placement.place(scales.a),
                                     .scale_b = placement.place(scales.b),
                                     .scale_result = placement.place(scale_result),
                                     .amax = placement.place(amax),
                                     .arrival_a = arriving.arrival_of(true),
                                     .arrival_b = arriving.arrival_of(false)};
  const Stream stream = stream_of_thread(context);
  run.timed([&] {
    matmul.execute(stream, arguments, {workspace});
    context.synchronize(stream);
  });
  placement.fetch(c);
  if (amax.present()) placement.fetch(amax);
  run.finish(files, matmul.info().implementation);
  return kOk;
}

}  // namespace

void add_run_matmul(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<MatmulFlags>();
  CLI::App* app = run.add_subcommand("matmul", "out = activation(alpha a b + beta c + bias)");
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
  file("--scale-a", flags->scale_a,
       "scales of an 8-bit a: one, [m] for its rows, or [m, ceil(k / 128)], as a lies");
  file("--scale-b", flags->scale_b,
       "scales of an 8-bit b: one, [n] for its columns, or [ceil(k / 128), ceil(n / 128)], as b "
       "lies");
  app->add_option("--accumulation", flags->accumulation, "of 8-bit products on tensor cores")
      ->type_name("fast|promoted")
      ->capture_default_str();
  app->add_option("--precision", flags->precision, "of products of f32, at least")
      ->type_name("default|tf32")
      ->capture_default_str();
  app->add_option("--activation", flags->activation, "applied to the result")
      ->type_name("none|gelu-tanh|gelu-erf|silu")
      ->capture_default_str();
  app->add_option("--output-dtype", flags->output_dtype,
                  "type of the result, if not that of a (f32 where a has 8 bits)")
      ->type_name("f16|bf16|f32|f64|f8e4m3|f8e5m2");
  file("--scale-result", flags->scale_result, "one factor of an 8-bit result");
  file("--amax", flags->amax, "the largest magnitude of the result, before --scale-result");
  add_arrival_flags(*app, flags->arrival,
                    "a (b for n) arrives in so many chunks while the product runs: chunk c of N "
                    "holds [c*M/N, (c+1)*M/N)");
  app->add_option("--chunk-dim", flags->chunk_dim,
                  "what is cut: rows of a, columns of b, or depth (m)")
      ->type_name("m|n|k");
  app->footer("Example:\n  perseid run matmul --a a.npy --b b.npy --transpose-b --out c.npy");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_matmul(common, *flags); };
  });
}

}  // namespace perseid::cli
