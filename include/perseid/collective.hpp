// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Groups of ranks, and operations that all ranks of a group compute together: see collective.h.
/// Not included by perseid.hpp.
#ifndef PERSEID_COLLECTIVE_HPP_
#define PERSEID_COLLECTIVE_HPP_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid {
inline namespace v0 {

namespace detail {
inline uint64_t nanoseconds(std::chrono::nanoseconds deadline) {
  require(deadline.count() >= 0, "a deadline is not negative");
  return static_cast<uint64_t>(deadline.count());
}
}  // namespace detail

/// How ranks' elements become one.
enum class Reduction {
  kSum = PERSEID_SUM,          ///< their sum
  kAverage = PERSEID_AVERAGE,  ///< their sum over the number of ranks
};

/// Which rank this process is to be, and how it finds the others.
struct GroupOptions {
  int32_t rank = 0;                      ///< 0..size - 1
  int32_t size = 0;                      ///< 0: everything as the environment says
  std::string rendezvous = {};           ///< "unix:PATH" or "tcp:HOST:PORT"
  std::string token = {};                ///< a secret that all ranks know; needed for TCP
  std::chrono::nanoseconds deadline{0};  ///< by when all must have come; 0: 30 s
  /// Instead of a rendezvous: gives every rank what each brings, as perseid_all_gather_fn does.
  /// Where it throws, the group is not opened: PEER_LOST.
  std::function<void(const void* mine, size_t bytes, void* all)> all_gather = {};
};

/// One rank's membership in a group. Deadlines of 0 are 30 s; a call that ends without a rank
/// throws Error with TIMEOUT or PEER_LOST, which names it.
/// \snippet ranks.cpp group
class Group {
 public:
  /// Opens a group; all its ranks do.
  explicit Group(const GroupOptions& options = {}) {
    auto given = detail::sized<perseid_group_options>();
    given.rank = options.rank;
    given.size = options.size;
    given.rendezvous = options.rendezvous.c_str();
    given.token = options.token.c_str();
    given.deadline_ns = detail::nanoseconds(options.deadline);
    auto all_gather = options.all_gather;
    if (all_gather) {
      given.user = &all_gather;
      given.all_gather = [](void* user, const void* mine, size_t bytes, void* all) {
        try {
          (*static_cast<decltype(all_gather)*>(user))(mine, bytes, all);
          return 0;
        } catch (...) {  // none may pass the C interface
          return 1;
        }
      };
    }
    perseid_group_t handle = nullptr;
    detail::check(perseid_group_create(&given, &handle));
    handle_.reset(handle);
  }
  /// Groups of one process: the r-th for the thread that is to be rank r.
  /// \snippet ranks.cpp threads
  static std::vector<Group> threads(int32_t size) {
    std::vector<perseid_group_t> handles(static_cast<size_t>(size > 0 ? size : 1));
    detail::check(perseid_group_create_threads(size, handles.data()));
    std::vector<Group> groups;
    for (perseid_group_t handle : handles) groups.push_back(Group(handle));
    return groups;
  }

  int32_t rank() const { return info().rank; }  ///< this one
  int32_t size() const { return info().size; }  ///< how many there are
  /// All facts.
  perseid_group_info info() const {
    auto info = detail::sized<perseid_group_info>();
    detail::check(perseid_group_query(get(), &info));
    return info;
  }
  /// A group of the ranks that call this before the deadline. This one is only to be destroyed.
  /// \snippet ranks.cpp shrink
  Group shrink(std::chrono::nanoseconds deadline = {}) const {
    perseid_group_t handle = nullptr;
    detail::check(perseid_group_shrink(get(), detail::nanoseconds(deadline), &handle));
    return Group(handle);
  }

  /// Returns when all ranks have called it.
  void barrier(std::chrono::nanoseconds deadline = {}) const {
    detail::check(perseid_group_barrier(get(), detail::nanoseconds(deadline)));
  }
  /// output: the inputs of all ranks along dimension 0.
  void all_gather(const Tensor& input, const Tensor& output,
                  std::chrono::nanoseconds deadline = {}) const {
    detail::check(
        perseid_group_all_gather(get(), input.dl(), output.dl(), detail::nanoseconds(deadline)));
  }
  /// output: this rank's rows of the reduced inputs.
  void reduce_scatter(const Tensor& input, const Tensor& output,
                      Reduction reduction = Reduction::kSum,
                      std::chrono::nanoseconds deadline = {}) const {
    detail::check(perseid_group_reduce_scatter(get(), static_cast<perseid_reduction>(reduction),
                                               input.dl(), output.dl(),
                                               detail::nanoseconds(deadline)));
  }
  /// output: the reduced inputs. It may be the input.
  void all_reduce(const Tensor& input, const Tensor& output, Reduction reduction = Reduction::kSum,
                  std::chrono::nanoseconds deadline = {}) const {
    detail::check(perseid_group_all_reduce(get(), static_cast<perseid_reduction>(reduction),
                                           input.dl(), output.dl(), detail::nanoseconds(deadline)));
  }

  /// The C interface's handle, which this object owns.
  perseid_group_t get() const { return handle_.get(); }

 private:
  explicit Group(perseid_group_t handle) : handle_(handle) {}
  struct Destroy {
    void operator()(perseid_group_t handle) const { perseid_group_destroy(handle); }
  };
  std::unique_ptr<perseid_group, Destroy> handle_;
};

/// Memory that all ranks of a group can read and write, zeroed; all ranks make it together. It is
/// of the host, or of the ranks' GPUs. The group must live as long.
/// \snippet ranks.cpp memory
class GroupMemory {
 public:
  /// Allocates `bytes` for this rank.
  GroupMemory(const Group& group, size_t bytes, std::chrono::nanoseconds deadline = {})
      : data_(allocate(nullptr, group, bytes, deadline), Free{group.get()}) {}
  /// The same in memory of the context's device.
  GroupMemory(const Context& context, const Group& group, size_t bytes,
              std::chrono::nanoseconds deadline = {})
      : data_(allocate(&context, group, bytes, deadline), Free{group.get()}) {}
  void* data() const { return data_.get(); }  ///< of this rank
  /// Where this rank reaches that of another one.
  void* peer(int32_t rank) const {
    void* peer = nullptr;
    detail::check(perseid_group_memory_peer(data_.get_deleter().group, data(), rank, &peer));
    return peer;
  }

 private:
  struct Free {
    perseid_group_t group;
    void operator()(void* data) const { perseid_group_memory_free(group, data); }
  };
  static void* allocate(const Context* context, const Group& group, size_t bytes,
                        std::chrono::nanoseconds deadline) {
    void* data = nullptr;
    const uint64_t limit = detail::nanoseconds(deadline);
    detail::check(
        context == nullptr
            ? perseid_group_memory_allocate(group.get(), bytes, limit, &data)
            : perseid_group_memory_allocate_on(context->get(), group.get(), bytes, limit, &data));
    return data;
  }
  std::unique_ptr<void, Free> data_;
};

// ---- Plans over ranks --------------------------------------------------------------------------

/// Whether communicating overlaps computing. Results have the same bits.
enum class Fusion {
  kAuto = PERSEID_FUSION_AUTO,  ///< by a model, whose numbers explain() has
  kFused = PERSEID_FUSED,       ///< computing begins with what is here, or sends what is ready
  kUnfused = PERSEID_UNFUSED,   ///< one after the other
};

/// A plan that all ranks of a group make and execute.
class RankPlan : public Plan {
 public:
  using Plan::Plan;
  /// Where the time of the last execution went, as JSON and a Chrome trace: see
  /// perseid_plan_overlap_report. The plan was made with `report`.
  /// \snippet ranks.cpp overlap_report
  std::string overlap_report() const {
    const char* json = nullptr;
    detail::check(perseid_plan_overlap_report(get(), &json));
    return json;
  }
};

// ---- All-gather + matmul ----------------------------------------------------------------------

/// One product of the gathered operand.
struct GatherProduct {
  int64_t n = 0;                   ///< columns of b and c; may differ between ranks
  DType out_dtype = DType::kNone;  ///< of c; none: dtype, or f32 where that is of 8 bits
  double alpha = 1;                ///< of a b; 0 stands for 1
  bool bias = false;               ///< a bias is given at execution
};

/// The problem of an AllGatherMatmul plan.
struct AllGatherMatmulOptions {
  DType dtype = f32;                         ///< of a and b
  ChunkDim gather_dim = ChunkDim::kM;        ///< shards are rows (kM) or columns (kK) of a
  int64_t batch = 1;                         ///< products
  int64_t m = 0;                             ///< rows of this rank's shard
  int64_t k = 0;                             ///< columns of this rank's shard
  std::vector<GatherProduct> products = {};  ///< at least one
  int64_t chunks = 0;                        ///< that each shard is signalled in; 0: by a model
  std::chrono::nanoseconds deadline{0};      ///< of making the plan
  const char* implementation = nullptr;      ///< of the product
  Fusion fusion = Fusion::kAuto;             ///< whether the product waits for all shards
  bool report = false;                       ///< for overlap_report()
  bool canonical = false;                    ///< the same bits for any number of ranks
  DType b_dtype = DType::kNone;              ///< of b: dtype (also none), or the other 8-bit type
  Scaling scaling = Scaling::kNone;          ///< of 8-bit a and b; kBlock is refused
  Accumulation accumulation = Accumulation::kPromoted;  ///< of 8-bit a and b
  bool sharded_scales = false;  ///< kRow: each rank gives those of its own rows, not of all
};

/// The tensors of AllGatherMatmul::execute. M and K are the sizes of the gathered a.
struct AllGatherMatmulArguments {
  Tensor a = {};                          ///< [batch, m, k], this rank's shard
  std::vector<Tensor> b = {};             ///< of each product: [batch, K, n] or [K, n]
  std::vector<Tensor> bias = {};          ///< none, or of each product: absent, or [n]
  std::vector<Tensor> c = {};             ///< of each product: [batch, M, n]
  Tensor gathered = {};                   ///< optional: [batch, M, K]
  std::chrono::nanoseconds deadline{0};   ///< 0: 30 s
  perseid_wait_record* record = nullptr;  ///< how the waits ended
  Tensor scale_a = {};                    ///< f32: [1]; [batch, M]; sharded [batch, m]
  std::vector<Tensor> scale_b = {};       ///< f32, of each product: [1]; [batch, n]
};

/// c[i] = alpha[i] * gather(a) b[i] + bias[i].
/// \snippet ranks.cpp all_gather_matmul
class AllGatherMatmul : public RankPlan {
 public:
  /// Makes a plan; all ranks do.
  AllGatherMatmul(const Context& context, const Group& group, const AllGatherMatmulOptions& options)
      : RankPlan(create(context, group, options)), products_(options.products.size()) {}

  /// Where this rank's shard is read: [batch, m, k]. What is produced there is not copied.
  Tensor shard() const {
    const DLTensor* shard = nullptr;
    detail::check(perseid_all_gather_matmul_shard(get(), &shard));
    return Tensor(*shard);
  }
  /// Writes c, and gathered where given; all ranks do.
  void execute(const AllGatherMatmulArguments& with, const Scratch& workspace) const {
    execute(nullptr, with, workspace);
  }
  /// The same on a stream of the context's GPU: it enqueues and returns.
  /// \snippet ranks.cpp all_gather_matmul
  void execute(Stream stream, const AllGatherMatmulArguments& with,
               const Scratch& workspace) const {
    detail::require(with.b.size() == products_ && with.c.size() == products_ &&
                        (with.bias.empty() || with.bias.size() == products_) &&
                        (with.scale_b.empty() || with.scale_b.size() == products_),
                    "b, c, bias and scale_b are as many as products: ", products_);
    constexpr size_t kMost = 64;  // products of a plan
    std::array<const DLTensor*, kMost> b{}, bias{}, c{}, scale_b{};
    for (size_t i = 0; i < products_; ++i) {
      b[i] = with.b[i].dl();
      c[i] = with.c[i].dl();
      if (!with.bias.empty()) bias[i] = with.bias[i].dl();
      if (!with.scale_b.empty()) scale_b[i] = with.scale_b[i].dl();
    }
    auto args = detail::sized<perseid_all_gather_matmul_args>();
    args.a = with.a.dl();
    args.b = b.data();
    args.bias = with.bias.empty() ? nullptr : bias.data();
    args.c = c.data();
    args.gathered = with.gathered.dl();
    args.deadline_ns = detail::nanoseconds(with.deadline);
    args.record = with.record;
    args.scale_a = with.scale_a.dl();
    args.scale_b = with.scale_b.empty() ? nullptr : scale_b.data();
    execute_as(Direction::kForward, perseid_all_gather_matmul_execute, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const Group& group,
                               const AllGatherMatmulOptions& options) {
    std::vector<perseid_gather_product> products;
    for (const GatherProduct& product : options.products) {
      auto made = detail::sized<perseid_gather_product>();
      made.out_dtype = static_cast<uint32_t>(product.out_dtype);
      made.n = product.n;
      made.alpha = product.alpha;
      made.bias = product.bias;
      products.push_back(made);
    }
    auto desc = detail::sized<perseid_all_gather_matmul_desc>();
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.gather_dim = static_cast<uint32_t>(options.gather_dim);
    desc.product_count = static_cast<uint32_t>(products.size());
    desc.batch = options.batch;
    desc.m = options.m;
    desc.k = options.k;
    desc.products = products.data();
    desc.chunks = options.chunks;
    desc.deadline_ns = detail::nanoseconds(options.deadline);
    desc.implementation = options.implementation;
    desc.fusion = static_cast<uint32_t>(options.fusion);
    desc.report = options.report;
    desc.canonical = options.canonical;
    desc.b_dtype = static_cast<uint32_t>(options.b_dtype);
    desc.scaling = static_cast<uint32_t>(options.scaling);
    desc.accumulation = static_cast<uint32_t>(options.accumulation);
    desc.sharded_scales = options.sharded_scales;
    perseid_plan_t plan = nullptr;
    detail::check(perseid_all_gather_matmul_plan_create(context.get(), group.get(), &desc, &plan));
    return plan;
  }

  size_t products_;
};

// ---- Matmul + reduce-scatter, matmul + all-reduce ---------------------------------------------

/// The problem of a MatmulReduce plan.
struct MatmulReduceOptions {
  DType dtype = f32;                      ///< of a and b
  DType out_dtype = DType::kNone;         ///< of c; none: dtype, or f32 where that is of 8 bits
  ChunkDim scatter_dim = ChunkDim::kM;    ///< shards are rows (kM) or columns (kN) of c
  Reduction reduction = Reduction::kSum;  ///< over ranks
  bool all_reduce = false;                ///< every rank gets all of c
  bool bias = false;                      ///< a bias is given at execution
  int64_t batch = 1;                      ///< products
  int64_t m = 0;                          ///< rows of a and of the whole c
  int64_t n = 0;                          ///< columns of b and of the whole c
  int64_t k = 0;                          ///< of this rank; may differ between ranks
  std::chrono::nanoseconds deadline{0};   ///< of making the plan
  const char* implementation = nullptr;   ///< of the product
  Fusion fusion = Fusion::kAuto;          ///< whether shards leave when all are complete
  bool report = false;                    ///< for overlap_report()
  bool canonical = false;                 ///< the same bits for 1, 2, 4 and 8 ranks
  DType b_dtype = DType::kNone;           ///< of b: dtype (also none), or the other 8-bit type
  Scaling scaling = Scaling::kNone;       ///< of 8-bit a and b; kBlock is refused
  Accumulation accumulation = Accumulation::kPromoted;  ///< of 8-bit a and b
};

/// The tensors of MatmulReduce::execute.
struct MatmulReduceArguments {
  Tensor a = {};                          ///< [batch, m, k], or [m, k] for every batch entry
  Tensor b = {};                          ///< [batch, k, n], or [k, n] for every batch entry
  Tensor bias = {};                       ///< [n], the same on all ranks
  Tensor c = {};                          ///< this rank's shard of [batch, m, n], or all of it
  std::chrono::nanoseconds deadline{0};   ///< 0: 30 s
  perseid_wait_record* record = nullptr;  ///< how the waits ended
  Tensor scale_a = {};                    ///< f32, of this rank: [1]; [batch, m]
  Tensor scale_b = {};                    ///< f32, of this rank: [1]; [batch, n]
};

/// c = reduce(a b over all ranks) + bias.
/// \snippet ranks.cpp matmul_reduce
class MatmulReduce : public RankPlan {
 public:
  /// Makes a plan; all ranks do.
  MatmulReduce(const Context& context, const Group& group, const MatmulReduceOptions& options)
      : RankPlan(create(context, group, options)) {}

  /// Writes c; all ranks do.
  void execute(const MatmulReduceArguments& with, const Scratch& workspace) const {
    execute(nullptr, with, workspace);
  }
  /// The same on a stream of the context's GPU: it enqueues and returns.
  /// \snippet ranks.cpp matmul_reduce
  void execute(Stream stream, const MatmulReduceArguments& with, const Scratch& workspace) const {
    auto args = detail::sized<perseid_matmul_reduce_args>();
    args.a = with.a.dl();
    args.b = with.b.dl();
    args.bias = with.bias.dl();
    args.c = with.c.dl();
    args.deadline_ns = detail::nanoseconds(with.deadline);
    args.record = with.record;
    args.scale_a = with.scale_a.dl();
    args.scale_b = with.scale_b.dl();
    execute_as(Direction::kForward, perseid_matmul_reduce_execute, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const Group& group,
                               const MatmulReduceOptions& options) {
    auto desc = detail::sized<perseid_matmul_reduce_desc>();
    desc.dtype = static_cast<uint32_t>(options.dtype);
    desc.out_dtype = static_cast<uint32_t>(options.out_dtype);
    desc.scatter_dim = static_cast<uint32_t>(options.scatter_dim);
    desc.reduction = static_cast<uint32_t>(options.reduction);
    desc.all_reduce = options.all_reduce;
    desc.bias = options.bias;
    desc.batch = options.batch;
    desc.m = options.m;
    desc.n = options.n;
    desc.k = options.k;
    desc.deadline_ns = detail::nanoseconds(options.deadline);
    desc.implementation = options.implementation;
    desc.fusion = static_cast<uint32_t>(options.fusion);
    desc.report = options.report;
    desc.canonical = options.canonical;
    desc.b_dtype = static_cast<uint32_t>(options.b_dtype);
    desc.scaling = static_cast<uint32_t>(options.scaling);
    desc.accumulation = static_cast<uint32_t>(options.accumulation);
    perseid_plan_t plan = nullptr;
    detail::check(perseid_matmul_reduce_plan_create(context.get(), group.get(), &desc, &plan));
    return plan;
  }
};

// ---- Context-parallel attention ---------------------------------------------------------------

/// Which rows of a sequence of S a rank holds.
enum class Sharding {
  kContiguous = PERSEID_CONTIGUOUS,  ///< rows one after the other; ranks may be uneven
  kZigzag = PERSEID_ZIGZAG,          ///< of 2 P equal pieces rank r of P holds r and 2 P - 1 - r
};

/// The problem of a ContextAttention plan.
struct ContextAttentionOptions {
  AttentionOptions attention = {};             ///< of this rank's rows, without async_kv
  Sharding placement = Sharding::kContiguous;  ///< the rows that a rank holds
  int64_t chunks = 1;                          ///< that each piece is signalled in
  std::chrono::nanoseconds deadline{0};        ///< of making the plan
  bool report = false;                         ///< for overlap_report()
  bool canonical = false;                      ///< the same bits for any number of ranks
  Fusion fusion = Fusion::kAuto;               ///< whether forward waits for all keys
};

/// Attention of sequences that are spread over ranks. Tensors have the rows of this rank; of bias
/// and visible, its queries and all keys. Cumulative lengths and kv_lens are those of whole
/// sequences.
/// \snippet ranks.cpp context_attention
class ContextAttention : public RankPlan {
 public:
  /// Makes a plan; all ranks do.
  ContextAttention(const Context& context, const Group& group,
                   const ContextAttentionOptions& options)
      : RankPlan(create(context, group, options)) {}

  /// Writes out, and lse where given; all ranks do. `deadline` 0: 30 s. `record`: how the waits
  /// ended.
  /// \snippet ranks.cpp context_attention
  void forward(Stream stream, const AttentionForward& with, const Scratch& workspace,
               std::chrono::nanoseconds deadline = {},
               perseid_wait_record* record = nullptr) const {
    auto attention = detail::sized<perseid_attention_forward_args>();
    detail::set_inputs(attention, with);
    const detail::ArrivalArgument arrival_kv(with.arrival_kv);
    attention.arrival_kv = arrival_kv.get();
    auto args = detail::sized<perseid_context_attention_forward_args>();
    args.attention = &attention;
    args.deadline_ns = detail::nanoseconds(deadline);
    args.record = record;
    execute_as(Direction::kForward, perseid_context_attention_forward, args, stream, workspace);
  }
  /// Writes the gradients that are given, from what forward wrote; all ranks do. `deadline` and
  /// `record` as in forward.
  /// \snippet ranks.cpp context_attention
  void backward(Stream stream, const AttentionBackward& with, const Scratch& workspace,
                std::chrono::nanoseconds deadline = {},
                perseid_wait_record* record = nullptr) const {
    auto attention = detail::sized<perseid_attention_backward_args>();
    detail::set_tensors(attention, with);
    auto args = detail::sized<perseid_context_attention_backward_args>();
    args.attention = &attention;
    args.deadline_ns = detail::nanoseconds(deadline);
    args.record = record;
    execute_as(Direction::kBackward, perseid_context_attention_backward, args, stream, workspace);
  }

 private:
  static perseid_plan_t create(const Context& context, const Group& group,
                               const ContextAttentionOptions& options) {
    perseid_attention_desc attention = detail::attention_desc(options.attention);
    const detail::AsyncOperand async_kv(options.attention.async_kv);
    attention.async_kv = async_kv.get();
    auto desc = detail::sized<perseid_context_attention_desc>();
    desc.placement = static_cast<uint32_t>(options.placement);
    desc.attention = &attention;
    desc.chunks = options.chunks;
    desc.deadline_ns = detail::nanoseconds(options.deadline);
    desc.report = options.report;
    desc.canonical = options.canonical;
    desc.fusion = static_cast<uint32_t>(options.fusion);
    perseid_plan_t plan = nullptr;
    detail::check(perseid_context_attention_plan_create(context.get(), group.get(), &desc, &plan));
    return plan;
  }
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_COLLECTIVE_HPP_
