// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// attention-search [DIM...] [--value-dim N] [--length N] [--f16] [--full] [--compile-only]
//
// Proposes the tables of tiles in src/cuda/sm90/attention.cpp and attention_backward.cpp. For each
// dim every configuration that may fit is compiled, on all CPUs; those that need more shared memory
// than a block has, spill registers, or have products that the assembler runs one after another are
// dropped; the others are timed on the first GPU, in turns, and held to the result of the one that
// the library chooses. The five fastest of each problem are printed, and that one. Without a GPU,
// or with --compile-only, it prints what compiles. Kernels are kept in the cache of kernels.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kRows = 16384, kWidth = 2048;  // batch * length, heads * dim

struct Options {
  std::vector<int64_t> dims;
  int64_t value_dim = 0, length = 4096;
  bool f16 = false, full = false, compile_only = false;
};

AttentionProblem problem_of(const Options& options, int64_t dim) {
  AttentionProblem problem;
  problem.dtype = options.f16 ? DType::kF16 : DType::kBF16;
  problem.batch = max(int64_t{1}, kRows / options.length);
  problem.heads = problem.kv_heads = max(int64_t{1}, kWidth / dim);
  problem.q_len = problem.kv_len = options.length;
  problem.head_dim = dim;
  problem.value_dim = options.value_dim > 0 ? options.value_dim : dim;
  problem.scale = 0.1;
  problem.causal = options.full ? Causal::kNone : Causal::kBottomRight;
  problem.grad_query = problem.grad_key = problem.grad_value = true;
  return problem;
}

// ---- Candidates ----

template <class Config>
struct Candidate {
  Config config;
  Program program;
  std::string verdict;    // why not; "" else
  double seconds = 1e30;  // of the fastest turn
};

template <class Config>
using Candidates = std::vector<Candidate<Config>>;

Program program_of(const AttentionForwardConfig& config) {
  return {kAttentionForwardHeader, attention_forward_kernels(config), "sm_90a"};
}
Program program_of(const AttentionBackwardConfig& config) {
  return {kAttentionBackwardHeader, attention_backward_kernels(config), "sm_90a"};
}

template <class Config>
void add(const Config& config, Candidates<Config>* all) {
  if (config.shared_bytes() > kMostShared) return;
  Candidate<Config> candidate{config, program_of(config), ""};
  const auto same = [&](const Candidate<Config>& other) {
    return other.program.kernels == candidate.program.kernels;
  };
  if (std::none_of(all->begin(), all->end(), same)) all->push_back(std::move(candidate));
}

// The one that the library chooses comes first.
Candidates<AttentionForwardConfig> forward_candidates(const AttentionProblem& problem) {
  const AttentionForwardConfig chosen = choose_attention_forward(problem);
  Candidates<AttentionForwardConfig> all;
  add(chosen, &all);
  constexpr struct {
    MaskLoop mask_loop;
    bool overlap_softmax_pv;
  } kLoops[] = {{MaskLoop::kUniform, false},
                {MaskLoop::kUniform, true},
                {MaskLoop::kSplitAtDiagonal, false},
                {MaskLoop::kPeeled, false},
                {MaskLoop::kPeeled, true}};
  for (const int consumers : {1, 2, 3}) {
    // One has few rows, or wastes what it loads.
    if ((consumers == 1) != (chosen.consumers == 1)) continue;
    for (int keys = 32; keys <= 256; keys += 16)
      for (const int q_stages : {1, 2})
        for (const int stages : {2, 3})
          for (const auto& loop : kLoops) {
            AttentionForwardConfig config = chosen;
            config.consumers = consumers;
            config.keys = keys;
            config.q_stages = q_stages;
            config.stages = stages;
            config.mask_loop = loop.mask_loop;
            config.overlap_softmax_pv = loop.overlap_softmax_pv;
            if (!config.allows(config.mask_loop)) continue;
            // Results, scores, and weights of half the size share the registers.
            const int words = config.value_dim / 2 + keys / 2 + keys / 4;
            if (words <= config.consumer_registers()) add(config, &all);
          }
  }
  return all;
}

Candidates<AttentionBackwardConfig> backward_candidates(const AttentionProblem& problem) {
  const AttentionBackwardConfig chosen = choose_attention_backward(problem);
  Candidates<AttentionBackwardConfig> all;
  add(chosen, &all);
  for (const int queries : {64, 128})
    for (const bool split_keys : {false, true}) {
      AttentionBackwardConfig config = chosen;
      config.queries = queries;
      config.split_keys = split_keys;
      // Gradients of keys and values of 64 keys, scores and their gradients share the registers.
      const int words = split_keys ? config.key_dim / 2 + config.value_dim / 2 + queries
                                   : max(config.key_dim, config.value_dim) / 2 + queries;
      if (words <= config.consumer_registers() && (queries == 64 || config.key_dim <= 64))
        add(config, &all);
    }
  return all;
}

// ---- Compilation ----

std::string verdict_on(const std::string& log) {
  for (const char* remark : {"C7508", "C7510", "C7512"})
    if (log.find(remark) != std::string::npos) return concatenate("products wait: ", remark);
  for (size_t at = log.find(" bytes spill stores"); at != std::string::npos;
       at = log.find(" bytes spill stores", at + 1)) {
    const std::string bytes =
        log.substr(log.rfind(' ', at - 1) + 1, at - log.rfind(' ', at - 1) - 1);
    if (std::atoi(bytes.c_str()) > 8) return bytes + " bytes spilled";
  }
  return "";
}

// Each kernel by itself, as plans look for them. In processes, as the compiler lets threads wait
// for each other. What they say comes in files.
template <class Config>
void compile_all(Candidates<Config>* all, const Version& version) {
  const size_t processes = max(1u, std::thread::hardware_concurrency());
  const std::string path = concatenate(cache_folder(), "/search.", getpid(), ".");
  std::vector<pid_t> children;
  for (size_t first = 0; first < processes; ++first) {
    const pid_t child = fork();
    if (child < 0) continue;
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    for (size_t i = first; i < all->size(); i += processes) {
      const Program& program = (*all)[i].program;
      std::string verdict;
      for (const std::string& kernel : program.kernels) {
        Image image;
        std::string log;
        const Program part{program.header, {kernel}, program.architecture};
        const std::string key = key_of(part, &version);
        if (load_cached(cache_folder(), key, &image)) continue;
        verdict = compile(part, &image, &log).ok() ? verdict_on(log) : "no kernel";
        if (!verdict.empty()) break;
        store_cached(cache_folder(), key, image);
      }
      std::ofstream(path + std::to_string(i)) << verdict;
    }
    _exit(0);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  for (size_t i = 0; i < all->size(); ++i) {
    const std::string file = path + std::to_string(i);
    (*all)[i].verdict = "not compiled";
    if (std::ifstream stream(file); stream) {
      (*all)[i].verdict.clear();
      std::getline(stream, (*all)[i].verdict);
    }
    std::remove(file.c_str());
  }
}

// ---- Time ----

// Stops the search, which can go on with nothing that fails.
void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.sentence().c_str());
  std::exit(1);
}

class Bytes {
 public:
  Bytes(const Gpu& gpu, size_t bytes) : gpu_(gpu), bytes_(bytes) {
    must(allocate(gpu, bytes, &data_));
  }
  ~Bytes() { release(gpu_, data_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return bytes_; }

 private:
  const Gpu& gpu_;
  size_t bytes_;
  void* data_ = nullptr;
};

// [batch, heads, length, dim], lying as [batch, length, heads, dim], or [batch, heads, length].
class Array {
 public:
  Array(const Gpu& gpu, const AttentionProblem& p, DType dtype, int64_t dim)
      : gpu_(gpu),
        memory_(gpu, static_cast<size_t>(p.batch * p.heads * p.q_len * max(dim, int64_t{1}) *
                                         size_of(dtype))) {
    tensor_.data = memory_.data();
    tensor_.dtype = dtype;
    tensor_.rank = dim > 0 ? 4 : 3;
    const int64_t shape[] = {p.batch, p.heads, p.q_len, dim};
    const int64_t packed[] = {p.q_len * p.heads * dim, dim, p.heads * dim, 1};
    const int64_t plain[] = {p.heads * p.q_len, p.q_len, 1};
    std::copy_n(shape, tensor_.rank, tensor_.shape);
    std::copy_n(dim > 0 ? packed : plain, tensor_.rank, tensor_.stride);
  }
  const Tensor& tensor() const { return tensor_; }
  // Some of it, from all parts.
  std::vector<uint16_t> sample() const {
    constexpr size_t kSlices = 61, kMost = 16384;  // a slice of so many elements at most
    const size_t elements = memory_.size() / 2, stride = elements / kSlices;
    const size_t length = min(stride, kMost);
    std::vector<uint16_t> bits(kSlices * length);
    for (size_t i = 0; i < kSlices; ++i)
      must(copy(gpu_, bits.data() + i * length, memory_.data() + i * stride * 2, length * 2,
                nullptr));
    return bits;
  }
  // About normal: sums of four random numbers in [-0.5, 0.5), times two.
  void randomise(uint64_t seed) const {
    std::vector<uint16_t> bits(memory_.size() / 2);
    for (uint16_t& each : bits) {
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
      }
      if (tensor_.dtype == DType::kF16) {
        const f16 value = convert<f16>(2 * sum);
        std::memcpy(&each, &value, 2);
      } else {
        const bf16 value = convert<bf16>(2 * sum);
        std::memcpy(&each, &value, 2);
      }
    }
    must(copy(gpu_, memory_.data(), bits.data(), memory_.size(), nullptr));
  }

 private:
  const Gpu& gpu_;
  Bytes memory_;
  Tensor tensor_;
};

// Tensors of a problem, and executions over them.
class Bench {
 public:
  Bench(const std::shared_ptr<Gpu>& gpu, const AttentionProblem& p)
      : problem_(p),
        gpu_(gpu),
        query_(*gpu, p, p.dtype, p.head_dim),
        key_(*gpu, p, p.dtype, p.head_dim),
        value_(*gpu, p, p.dtype, p.value_dim),
        out_(*gpu, p, p.dtype, p.value_dim),
        grad_out_(*gpu, p, p.dtype, p.value_dim),
        grad_query_(*gpu, p, p.dtype, p.head_dim),
        grad_key_(*gpu, p, p.dtype, p.head_dim),
        grad_value_(*gpu, p, p.dtype, p.value_dim),
        lse_(*gpu, p, DType::kF32, 0) {
    uint64_t seed = 1;
    for (const Array* each : {&query_, &key_, &value_, &grad_out_}) each->randomise(seed++);
    must(Timer::make(gpu, &timer_));
  }
  void time(Candidates<AttentionForwardConfig>* all) {
    time(all, out_, [&](const AttentionForwardConfig& config) { return forward(config); });
  }
  void time(Candidates<AttentionBackwardConfig>* all) {
    forward(choose_attention_forward(problem_))();
    time(all, grad_key_, [&](const AttentionBackwardConfig& config) { return backward(config); });
  }

 private:
  using Execution = std::function<void()>;

  Execution forward(const AttentionForwardConfig& config) {
    std::unique_ptr<Sm90Attention> made;
    must(Sm90Attention::make(problem_, config, *gpu_, &made));
    const std::shared_ptr<Sm90Attention> attention = std::move(made);
    const auto work = std::make_shared<Bytes>(*gpu_, attention->forward_workspace() + 1);
    AttentionForward tensors;
    tensors.query = query_.tensor();
    tensors.key = key_.tensor();
    tensors.value = value_.tensor();
    tensors.out = out_.tensor();
    tensors.lse = lse_.tensor();
    return [=] { must(attention->forward(tensors, work->data(), nullptr)); };
  }
  Execution backward(const AttentionBackwardConfig& config) {
    std::unique_ptr<Sm90AttentionBackward> made;
    must(Sm90AttentionBackward::make(problem_, config, *gpu_, &made));
    const std::shared_ptr<Sm90AttentionBackward> attention = std::move(made);
    const auto work = std::make_shared<Bytes>(*gpu_, attention->workspace() + 1);
    AttentionBackward tensors;
    tensors.query = query_.tensor();
    tensors.key = key_.tensor();
    tensors.value = value_.tensor();
    tensors.out = out_.tensor();
    tensors.lse = lse_.tensor();
    tensors.grad_out = grad_out_.tensor();
    tensors.grad_query = grad_query_.tensor();
    tensors.grad_key = grad_key_.tensor();
    tensors.grad_value = grad_value_.tensor();
    return [=] { must(attention->backward(tensors, work->data(), nullptr)); };
  }

  // In turns, so that the clock of the device falls on all alike.
  template <class Config, class Make>
  void time(Candidates<Config>* all, const Array& result, const Make& make) {
    std::vector<Execution> executions(all->size());
    std::vector<uint16_t> expected;
    for (size_t i = 0; i < all->size(); ++i) {
      Candidate<Config>& candidate = (*all)[i];
      if (!candidate.verdict.empty()) continue;
      executions[i] = make(candidate.config);
      executions[i]();
      const std::vector<uint16_t> found = result.sample();
      if (expected.empty()) expected = found;
      if (!near(found, expected)) candidate.verdict = "WRONG", executions[i] = nullptr;
    }
    constexpr int kTurns = 5, kLaunches = 4;
    for (int turn = 0; turn < kTurns; ++turn)
      for (size_t i = 0; i < all->size(); ++i) {
        if (!executions[i]) continue;
        must(timer_->start(nullptr));
        for (int launch = 0; launch < kLaunches; ++launch) executions[i]();
        must(timer_->stop(nullptr));
        double seconds = 0;
        must(timer_->seconds(&seconds));
        (*all)[i].seconds = min((*all)[i].seconds, seconds / kLaunches);
      }
  }
  // Within a sixteenth of an element's size, or of the size that most elements have.
  bool near(const std::vector<uint16_t>& found, const std::vector<uint16_t>& expected) const {
    const auto value = [&](uint16_t bits) {
      if (problem_.dtype == DType::kF16) {
        f16 half;
        std::memcpy(&half, &bits, 2);
        return convert<float>(half);
      }
      bf16 half;
      std::memcpy(&half, &bits, 2);
      return convert<float>(half);
    };
    for (size_t i = 0; i < found.size(); ++i) {
      const float a = value(found[i]), b = value(expected[i]);
      if (!(std::abs(a - b) <= 0.06f * std::abs(b) + 0.03f)) return false;
    }
    return true;
  }

  AttentionProblem problem_;
  std::shared_ptr<Gpu> gpu_;
  Array query_, key_, value_, out_, grad_out_, grad_query_, grad_key_, grad_value_, lse_;
  std::unique_ptr<Timer> timer_;
};

// ---- Report ----

std::string text_of(const AttentionForwardConfig& c) {
  constexpr const char* kLoops[] = {", uniform loop", ", loop split at the diagonal",
                                    ", peeled loop"};
  return concatenate(c.consumers, " consumers, ", c.keys, " keys, ", c.q_stages, " q_stages, ",
                     c.stages, " stages", kLoops[static_cast<int>(c.mask_loop)],
                     c.overlap_softmax_pv ? ", softmax under PV" : "");
}
std::string text_of(const AttentionBackwardConfig& c) {
  return concatenate(c.queries, " queries, ", c.split_keys ? "keys" : "products");
}

template <class Config>
void report(const char* direction, const AttentionProblem& problem, const Candidates<Config>& all,
            bool timed) {
  const size_t good = static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [](const auto& each) { return each.verdict.empty(); }));
  std::printf("%s, dims %d and %d, length %d, %s: %zu of %zu fit\n", direction,
              static_cast<int>(problem.head_dim), static_cast<int>(problem.value_dim),
              static_cast<int>(problem.q_len), problem.causal == Causal::kNone ? "full" : "causal",
              good, all.size());
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(!all[a].verdict.empty(), all[a].seconds) <
           std::pair(!all[b].verdict.empty(), all[b].seconds);
  });
  constexpr size_t kShown = 5;
  const double flops = (direction[0] == 'f' ? 2.0 : 5.0) *
                       static_cast<double>(problem.head_dim + problem.value_dim) *
                       static_cast<double>(problem.batch * problem.heads * problem.q_len) *
                       static_cast<double>(problem.kv_len) *
                       (problem.causal == Causal::kNone ? 1 : 0.5);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const Candidate<Config>& each = all[order[rank]];
    const bool wrong = each.verdict == "WRONG" || each.verdict == "no kernel";
    if (timed && rank >= kShown && order[rank] != 0 && !wrong) continue;
    if (timed) std::printf("%6.1f TFLOP/s,", flops / each.seconds / 1e12);
    std::printf("  %6d bytes shared: %s%s %s\n", static_cast<int>(each.config.shared_bytes()),
                text_of(each.config).c_str(), order[rank] == 0 ? " (chosen now)" : "",
                each.verdict.c_str());
  }
  std::fflush(stdout);
}

struct Search {
  AttentionProblem problem;
  Candidates<AttentionForwardConfig> forward;
  Candidates<AttentionBackwardConfig> backward;
};

int run(const Options& options) {
  Version version;
  must(compiler_version(&version));
  std::vector<Search> searches;
  for (const int64_t dim : options.dims) {
    const AttentionProblem problem = problem_of(options, dim);
    searches.push_back({problem, forward_candidates(problem), backward_candidates(problem)});
    compile_all(&searches.back().forward, version);
    compile_all(&searches.back().backward, version);
  }
  // After the compilers' processes: none of them may begin with the driver open.
  std::shared_ptr<Gpu> gpu;
  if (!options.compile_only)
    if (const Status status = Gpu::open(0, &gpu); !status.ok())
      std::printf("not timed: %s\n", status.sentence().c_str());
  for (Search& search : searches) {
    if (gpu != nullptr) {
      Bench bench(gpu, search.problem);
      bench.time(&search.forward);
      bench.time(&search.backward);
    }
    report("forward", search.problem, search.forward, gpu != nullptr);
    report("backward", search.problem, search.backward, gpu != nullptr);
  }
  return 0;
}

int usage() {
  std::fprintf(stderr,
               "usage: attention-search [DIM...] [--value-dim N] [--length N] [--f16] [--full] "
               "[--compile-only]\n");
  return 2;
}

int main(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool more = i + 1 < words.size();
    if (word == "--f16") {
      options.f16 = true;
    } else if (word == "--full") {
      options.full = true;
    } else if (word == "--compile-only") {
      options.compile_only = true;
    } else if (word == "--value-dim" && more) {
      options.value_dim = std::atoll(words[++i].c_str());
    } else if (word == "--length" && more) {
      options.length = std::atoll(words[++i].c_str());
    } else if (const int64_t dim = std::atoll(word.c_str()); dim > 0) {
      options.dims.push_back(dim);
    } else {
      return usage();
    }
  }
  if (options.dims.empty()) options.dims = {64, 96, 128, 192, 256};
  return options.length > 0 ? run(options) : usage();
}

}  // namespace
}  // namespace perseid::internal::cuda

int main(int argc, char** argv) {
  return perseid::internal::cuda::main(std::vector<std::string>(argv + 1, argv + argc));
}
