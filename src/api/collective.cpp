// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Groups, and the operations of all their ranks. They are defined in collective/.
#include <algorithm>
#include <cstring>

#include "api/guard.hpp"
#include "api/handles.hpp"
#include "api/sized_struct.hpp"
#include "base/observe.hpp"
#include "collective/all_gather_matmul.hpp"
#include "collective/context_attention.hpp"
#include "collective/exchange.hpp"
#include "collective/matmul_reduce.hpp"
#include "collective/mpi.hpp"
#include "collective/shared_memory.hpp"

struct perseid_group {
  std::shared_ptr<perseid::internal::collective::Group> group;
  perseid::internal::collective::SharedMemory memory;
};

namespace perseid::internal::api {

template <>
struct Pointees<perseid_all_gather_matmul_desc> {
  std::vector<perseid_gather_product> copies;
  bool read(op::Check& check, perseid_all_gather_matmul_desc* desc) {
    // The plan refuses what is not there.
    if (desc->products == nullptr || desc->product_count > collective::kMostProducts) return true;
    copies.resize(desc->product_count);
    const auto* given = reinterpret_cast<const std::byte*>(desc->products);
    for (perseid_gather_product& copy : copies) {
      if (!read_struct(check, reinterpret_cast<const perseid_gather_product*>(given), &copy))
        return false;
      given += desc->products->struct_size;
    }
    desc->products = copies.data();
    return true;
  }
};

namespace {

using collective::Group;
using collective::Operation;

Status create(const perseid_group_options& options, std::shared_ptr<Group>* group) {
  const Operation operation("group", options.deadline_ns);
  collective::RankIdentity identity{options.rank, options.size,
                                    options.rendezvous == nullptr ? "" : options.rendezvous,
                                    options.token == nullptr ? "" : options.token};
  Status status = collective::check_environment();
  const bool by_callback = options.all_gather != nullptr;
  if (status.ok() && options.size == 0)
    status = collective::identity_of_environment(!by_callback, &identity);
  const bool by_mpi = identity.rendezvous.starts_with(collective::kMpiRendezvous);
  if (status.ok() && !by_mpi) status = collective::check_identity(identity);
  if (!status.ok()) return status;
  std::vector<Descriptor> sockets;
  Group::Options group_options;
  if (by_mpi) {
    status = collective::meet_by_mpi(&identity, operation.deadline, &sockets, &group_options.mpi);
  } else if (by_callback) {
    const collective::AllGather all_gather = [&](const void* mine, size_t bytes, void* all) {
      return options.all_gather(options.user, mine, bytes, all) == 0;
    };
    status = collective::meet(identity.rank, identity.size, "", all_gather, operation.deadline,
                              &sockets);
  } else {
    status = collective::meet(identity, operation.deadline, &sockets);
  }
  if (!status.ok()) return status;
  return Group::open(std::make_shared<collective::Mesh>(identity.rank, std::move(sockets), nullptr),
                     operation, group_options, group);
}

perseid_group_t handle_of(std::shared_ptr<Group> group) {
  return new perseid_group{std::move(group), {}};
}

template <class Body>  // (Group&) -> Status
perseid_status with_group(const char* function, perseid_group_t group, const Body& body) {
  return guarded([&]() -> Status {
    return group == nullptr ? null_argument(function, "group") : body(*group->group);
  });
}

template <class OperationPlan, class Descriptor>
perseid_status create_plan(const char* function, perseid_context_t context, perseid_group_t group,
                           const Descriptor* desc, perseid_plan_t* plan) {
  return guarded([&]() -> Status {
    if (plan != nullptr) *plan = nullptr;
    if (group == nullptr) return null_argument(function, "group");
    Status given;
    if (plan == nullptr)
      given = null_argument(function, "plan");
    else if (context == nullptr)
      given = null_argument(function, "context");
    else if (desc == nullptr)
      given = null_argument(function, "desc");
    op::Check check(function);
    Descriptor current{};
    Pointees<Descriptor> pointees;
    if (given.ok() && !(read_struct(check, desc, &current) && pointees.read(check, &current)))
      given = check.result();
    // The other ranks make the plan, and begin with an exchange.
    if (!given.ok())
      return group->group->exchange({OperationPlan::kOperation, 0}, given, "", nullptr);
    auto made = std::make_unique<perseid_plan>();
    const std::string no_arguments;
    const Span span(OperationPlan::kOperation, "plan", "", false, no_arguments);
    if (Status status = OperationPlan::make(context->device, group->group, current, &made->plan);
        !status.ok())
      return status;
    *plan = made.release();
    return {};
  });
}

template <class OperationPlan>
Status plan_of(const char* function, perseid_plan_t plan, const OperationPlan** own) {
  if (plan == nullptr) return null_argument(function, "plan");
  *own = dynamic_cast<const OperationPlan*>(plan->plan.get());
  if (*own != nullptr) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, function, ": the plan is one of ",
                       plan->plan->operation(), ", expected one of ", OperationPlan::kOperation);
}

template <class OperationPlan, class Args>
perseid_status execute_plan(const char* function, perseid_plan_t plan, const Args* args,
                            Status (OperationPlan::*method)(const Args&, const op::Workspace&,
                                                            void*) const,
                            const op::Workspace& workspace, void* stream) {
  return guarded([&]() -> Status {
    const OperationPlan* own = nullptr;
    if (Status status = plan_of(function, plan, &own); !status.ok()) return status;
    if (args == nullptr) return null_argument(function, "args");
    op::Check check(function);
    Args current;
    Pointees<Args> pointees;
    if (!read_struct(check, args, &current) || !pointees.read(check, &current))
      return check.result();
    return (own->*method)(current, workspace, stream);
  });
}

// Any number: the operation refuses others, on all ranks.
collective::Reduction reduction_of(const perseid_reduction& given) {
  return static_cast<collective::Reduction>(number_of(given));
}

}  // namespace
}  // namespace perseid::internal::api

namespace api = perseid::internal::api;
namespace collective = perseid::internal::collective;
using perseid::internal::Status;

extern "C" {

perseid_status perseid_group_create(const perseid_group_options* options, perseid_group_t* group) {
  return api::guarded([&]() -> Status {
    if (group == nullptr) return api::null_argument("perseid_group_create", "group");
    *group = nullptr;
    perseid_group_options current{};
    perseid::internal::op::Check check("perseid_group_create");
    if (options != nullptr && !api::read_struct(check, options, &current)) return check.result();
    std::shared_ptr<collective::Group> made;
    if (Status status = api::create(current, &made); !status.ok()) return status;
    *group = api::handle_of(std::move(made));
    return {};
  });
}

perseid_status perseid_group_create_threads(int32_t size, perseid_group_t* groups) {
  return api::guarded([&]() -> Status {
    if (groups == nullptr) return api::null_argument("perseid_group_create_threads", "groups");
    if (size < 1 || size > collective::kMostRanks)
      return Status::error(PERSEID_INVALID_ARGUMENT, "perseid_group_create_threads: size is ", size,
                           ", expected 1 to ", collective::kMostRanks);
    std::fill_n(groups, size, nullptr);
    std::vector<std::shared_ptr<collective::Group>> made;
    if (Status status = collective::Group::open_threads(size, {}, &made); !status.ok())
      return status;
    for (size_t rank = 0; rank < made.size(); ++rank)
      groups[rank] = api::handle_of(std::move(made[rank]));
    return {};
  });
}

void perseid_group_destroy(perseid_group_t group) { delete group; }

perseid_status perseid_group_query(perseid_group_t group, perseid_group_info* info) {
  return api::guarded([&]() -> Status {
    if (group == nullptr) return api::null_argument("perseid_group_query", "group");
    if (info == nullptr) return api::null_argument("perseid_group_query", "info");
    perseid::internal::op::Check check("perseid_group_query");
    const uint32_t size = info->struct_size;
    perseid_group_info current;
    if (!api::read_struct(check, info, &current)) return check.result();
    const collective::Group& own = *group->group;
    current = {size,         own.rank(),      own.size(), own.origin(own.rank()),
               own.failed(), own.generation()};
    std::memcpy(info, &current, std::min<size_t>(size, sizeof current));
    return {};
  });
}

perseid_status perseid_group_shrink(perseid_group_t group, uint64_t deadline_ns,
                                    perseid_group_t* survivors) {
  if (survivors != nullptr) *survivors = nullptr;
  return api::with_group(__func__, group, [&](collective::Group& own) -> Status {
    if (survivors == nullptr) return api::null_argument("perseid_group_shrink", "survivors");
    std::shared_ptr<collective::Group> made;
    if (Status status = own.shrink({"shrink", deadline_ns}, &made); !status.ok()) return status;
    *survivors = api::handle_of(std::move(made));
    return {};
  });
}

perseid_status perseid_group_memory_allocate(perseid_group_t group, size_t bytes,
                                             uint64_t deadline_ns, void** data) {
  if (data != nullptr) *data = nullptr;
  return api::with_group(__func__, group, [&](collective::Group& own) -> Status {
    if (data == nullptr) return api::null_argument("perseid_group_memory_allocate", "data");
    return group->memory.allocate(own, {"memory", deadline_ns}, nullptr, bytes, data);
  });
}

perseid_status perseid_group_memory_allocate_on(perseid_context_t context, perseid_group_t group,
                                                size_t bytes, uint64_t deadline_ns, void** data) {
  if (data != nullptr) *data = nullptr;
  return api::with_group(__func__, group, [&](collective::Group& own) -> Status {
    constexpr const char* kFunction = "perseid_group_memory_allocate_on";
    if (context == nullptr) return api::null_argument(kFunction, "context");
    if (data == nullptr) return api::null_argument(kFunction, "data");
    return group->memory.allocate(own, {"memory", deadline_ns}, context->device.get(), bytes, data);
  });
}

perseid_status perseid_group_memory_peer(perseid_group_t group, const void* data, int32_t rank,
                                         void** peer) {
  return api::with_group(__func__, group, [&](collective::Group&) -> Status {
    if (peer == nullptr) return api::null_argument("perseid_group_memory_peer", "peer");
    return group->memory.peer(data, rank, peer);
  });
}

void perseid_group_memory_free(perseid_group_t group, void* data) {
  if (group != nullptr && data != nullptr) group->memory.release(data);
}

perseid_status perseid_group_barrier(perseid_group_t group, uint64_t deadline_ns) {
  return api::with_group(__func__, group, [&](collective::Group& own) {
    return collective::barrier(own, deadline_ns);
  });
}

perseid_status perseid_group_all_gather(perseid_group_t group, const DLTensor* input,
                                        const DLTensor* output, uint64_t deadline_ns) {
  return api::with_group(__func__, group, [&](collective::Group& own) {
    return collective::all_gather(own, input, output, deadline_ns);
  });
}

perseid_status perseid_group_reduce_scatter(perseid_group_t group, perseid_reduction reduction,
                                            const DLTensor* input, const DLTensor* output,
                                            uint64_t deadline_ns) {
  return api::with_group(__func__, group, [&](collective::Group& own) {
    return collective::reduce_scatter(own, api::reduction_of(reduction), input, output,
                                      deadline_ns);
  });
}

perseid_status perseid_group_all_reduce(perseid_group_t group, perseid_reduction reduction,
                                        const DLTensor* input, const DLTensor* output,
                                        uint64_t deadline_ns) {
  return api::with_group(__func__, group, [&](collective::Group& own) {
    return collective::all_reduce(own, api::reduction_of(reduction), input, output, deadline_ns);
  });
}

perseid_status perseid_plan_overlap_report(perseid_plan_t plan, const char** json) {
  return api::guarded([&]() -> Status {
    if (plan == nullptr) return api::null_argument("perseid_plan_overlap_report", "plan");
    if (json == nullptr) return api::null_argument("perseid_plan_overlap_report", "json");
    return plan->plan->overlap_report(json);
  });
}

perseid_status perseid_all_gather_matmul_plan_create(perseid_context_t context,
                                                     perseid_group_t group,
                                                     const perseid_all_gather_matmul_desc* desc,
                                                     perseid_plan_t* plan) {
  return api::create_plan<collective::AllGatherMatmulPlan>(__func__, context, group, desc, plan);
}

perseid_status perseid_all_gather_matmul_shard(perseid_plan_t plan, const DLTensor** shard) {
  return api::guarded([&]() -> Status {
    if (shard == nullptr) return api::null_argument("perseid_all_gather_matmul_shard", "shard");
    const collective::AllGatherMatmulPlan* own = nullptr;
    Status status = api::plan_of("perseid_all_gather_matmul_shard", plan, &own);
    return status.ok() ? own->shard(shard) : status;
  });
}

perseid_status perseid_all_gather_matmul_execute(perseid_plan_t plan,
                                                 const perseid_all_gather_matmul_args* args,
                                                 void* workspace, size_t workspace_bytes,
                                                 void* stream) {
  return api::execute_plan(__func__, plan, args, &collective::AllGatherMatmulPlan::execute,
                           {workspace, workspace_bytes}, stream);
}

perseid_status perseid_matmul_reduce_plan_create(perseid_context_t context, perseid_group_t group,
                                                 const perseid_matmul_reduce_desc* desc,
                                                 perseid_plan_t* plan) {
  return api::create_plan<collective::MatmulReducePlan>(__func__, context, group, desc, plan);
}

perseid_status perseid_matmul_reduce_execute(perseid_plan_t plan,
                                             const perseid_matmul_reduce_args* args,
                                             void* workspace, size_t workspace_bytes,
                                             void* stream) {
  return api::execute_plan(__func__, plan, args, &collective::MatmulReducePlan::execute,
                           {workspace, workspace_bytes}, stream);
}

perseid_status perseid_context_attention_plan_create(perseid_context_t context,
                                                     perseid_group_t group,
                                                     const perseid_context_attention_desc* desc,
                                                     perseid_plan_t* plan) {
  return api::create_plan<collective::ContextAttentionPlan>(__func__, context, group, desc, plan);
}

perseid_status perseid_context_attention_forward(perseid_plan_t plan,
                                                 const perseid_context_attention_forward_args* args,
                                                 void* workspace, size_t workspace_bytes,
                                                 void* stream) {
  return api::execute_plan(__func__, plan, args, &collective::ContextAttentionPlan::forward,
                           {workspace, workspace_bytes}, stream);
}

perseid_status perseid_context_attention_backward(
    perseid_plan_t plan, const perseid_context_attention_backward_args* args, void* workspace,
    size_t workspace_bytes, void* stream) {
  return api::execute_plan(__func__, plan, args, &collective::ContextAttentionPlan::backward,
                           {workspace, workspace_bytes}, stream);
}

}  // extern "C"
