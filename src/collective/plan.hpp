// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the plans of a group share.
#pragma once

#include "collective/transport.hpp"
#include "math/leaf_tree.hpp"
#include "op/descriptor.hpp"
#include "op/matmul.hpp"

namespace perseid::internal::collective {

using GroupPointer = std::shared_ptr<Group>;
using InnerPlan = std::unique_ptr<const op::Plan>;

// The product that the ranks compute of; all its fields are checked where it is made.
Status make_matmul(op::DevicePointer device, const perseid_matmul_desc& desc, InnerPlan* plan,
                   const op::MatmulOfRanks& of_ranks = {});
const op::MatmulPlan& matmul_of(const InnerPlan& plan);
// Its name; "" where there is no plan.
std::string implementation_of(const InnerPlan& plan);

// Exchanges whether each rank has made its products. In canonical order they are by the same
// kernels: `kernels` of this rank; "" in any other order.
Status agree_on_kernels(Group& group, const Operation& operation, const Status& mine,
                        const std::string& kernels);

// A tensor as the plans below take it. It points to the shape and strides of `view`.
DLTensor as_dl(Tensor* view, DLDevice device);

// The values that ranks must agree on, and those that they tell one another, by name.
class Terms {
 public:
  // Equal on all ranks. `said`: how a sentence calls the value, if not by its number.
  Terms& equal(const char* name, int64_t value, std::string said = "") {
    return add(name, value, true, std::move(said));
  }
  Terms& equal(const char* name, DType dtype) {
    return equal(name, static_cast<int64_t>(dtype), internal::name_of(dtype));
  }
  // An enumerator: names[value].
  Terms& equal(const char* name, int64_t value, std::initializer_list<const char*> names) {
    const auto n = static_cast<size_t>(value);
    return equal(name, value, n < names.size() ? names.begin()[n] : "");
  }
  Terms& own(const char* name, int64_t value) { return add(name, value, false, ""); }

  // Exchanges them, with what this rank has found wrong by itself. One sentence for all ranks.
  Status agree(Group& group, const Operation& operation, const Status& mine);
  // After that: what `rank` said.
  int64_t of(int32_t rank, const char* name) const;

 private:
  struct Term {
    std::string name;
    int64_t value;
    bool equal;
    std::string said;
  };
  // What a rank has said.
  struct Plan {
    std::string operation;
    std::vector<Term> terms;
  };
  Terms& add(const char* name, int64_t value, bool equal, std::string said) {
    terms_.push_back({name, value, equal, said.empty() ? std::to_string(value) : std::move(said)});
    return *this;
  }
  static std::string encode(const Plan& plan);
  static Plan decode(const std::string& message);
  static Status compare(size_t rank, const Plan& its, const Plan& first);

  std::vector<Term> terms_;
  std::vector<Plan> plans_;  // by rank
};

inline void add_device(const dispatch::Device& device, Terms* terms) {
  const bool gpu = device.gpu != nullptr;
  terms->equal("the context's device", gpu, {"a CPU", "a GPU"});
}

// Ranks of other GPUs would have other kernels, or other sums of the same ones.
inline void add_canonical(const dispatch::Device& device, uint32_t canonical, Terms* terms) {
  terms->equal("canonical", canonical);
  if (canonical == 0 || device.gpu == nullptr) return;
  const cuda::GpuFacts& facts = device.gpu->facts();
  terms->equal("compute capability", 100 * facts.major + facts.minor,
               concatenate(facts.major, ".", facts.minor));
}

// What descriptors of plans over ranks have in common.
template <class Descriptor>
void read_rank_plan(op::DescriptorReader& reader, const Descriptor& desc) {
  if constexpr (requires { desc.fusion; })
    reader.choice("fusion", desc.fusion, 3,
                  "PERSEID_FUSION_AUTO (0), PERSEID_FUSED (1) or PERSEID_UNFUSED (2)");
  reader.flag("report", desc.report);
  reader.flag("canonical", desc.canonical);
}

// On the CPU: until all chunks have arrived, beginning with the own ones.
Status await_chunks(Group& group, const Operation& operation, const ShardChunks& chunks,
                    const uint32_t* signals, const Sending& sending);

// How a kernel ended that waits for chunks on the CPU, where its record says what is missing.
Status end_of_waits(Group& group, const Operation& operation, const ShardChunks& chunks,
                    const Sending& sending, const perseid_wait_record& missing, Status status);

// Execution of a plan on a stream cannot be captured, since its epochs are numbers of its own.
Status refuse_capture(const dispatch::Device& device, const Operation& operation, void* stream);

}  // namespace perseid::internal::collective
