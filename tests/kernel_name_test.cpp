// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The name that a kernel is compiled by holds each field of its configuration: a field that it
// leaves out would silently be compiled as its default.
#include <gtest/gtest.h>

#include <set>
#include <type_traits>

#include "cuda/device/matmul/config.hpp"
#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/device/portable/attention/config.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/device/softmax/config.hpp"
#include "cuda/device/split/config.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"

namespace perseid::internal {
namespace {

using cuda::kernel_name;

template <class Field>
void change(Field& field) {
  if constexpr (std::is_same_v<Field, bool>)
    field = !field;
  else
    field = static_cast<Field>(static_cast<int>(field) + 1);
}

// Calls check(config, name of the field) with one field changed, for each field in turn.
template <class Config, class Check>
void change_each(const Check& check) {
  for (int changed = 0; changed < cuda::count_visited<Config>(); ++changed) {
    Config config{};
    int index = 0;
    Config::visit_fields(config, [&](const char* name, auto& field) {
      if (index++ != changed) return;
      change(field);
      check(config, name);
    });
  }
}

template <class Config>
class KernelName : public testing::Test {};

using Configs = testing::Types<cuda::AttentionForwardConfig, cuda::AttentionBackwardConfig,
                               cuda::Sm90MatmulConfig, cuda::MatmulTensorConfig,
                               cuda::MatmulFmaConfig, cuda::SplitConfig, cuda::SoftmaxConfig,
                               cuda::PortableForwardConfig, cuda::PortableBackwardConfig>;
TYPED_TEST_SUITE(KernelName, Configs, );

TYPED_TEST(KernelName, ChangesWithEachField) {
  std::set<std::string> names = {kernel_name("kernel", TypeParam{})};
  change_each<TypeParam>([&](const TypeParam& config, const char* field) {
    EXPECT_TRUE(names.insert(kernel_name("kernel", config)).second) << field;
  });
  EXPECT_EQ(static_cast<int>(names.size()), cuda::count_members<TypeParam>() + 1);
}

// NVRTC takes names in the order of declaration alone; members in the same order belong to them.
TYPED_TEST(KernelName, ListsFieldsInTheirOrder) {
  const TypeParam config{};
  const void* last = nullptr;
  TypeParam::visit_fields(config, [&](const char* name, const auto& field) {
    EXPECT_LT(last, static_cast<const void*>(&field)) << name;
    last = &field;
  });
}

TEST(KernelNames, OfAttentionHoldEachField) {
  using Forward = cuda::AttentionForwardConfig;
  const std::string forward = cuda::attention_forward_kernels(Forward{})[0];
  change_each<Forward>([&](const Forward& config, const char* field) {
    EXPECT_NE(cuda::attention_forward_kernels(config)[0], forward) << field;
  });
  using Backward = cuda::AttentionBackwardConfig;
  const std::string backward = cuda::attention_backward_kernels(Backward{})[1];
  change_each<Backward>([&](const Backward& config, const char* field) {
    EXPECT_NE(cuda::attention_backward_kernels(config)[1], backward) << field;
  });
}

TEST(KernelNames, AreReadable) {
  constexpr const char* kConfig = "perseid::internal::cuda::MatmulFmaConfig";
  EXPECT_EQ(kernel_name("matmul_fma", cuda::MatmulFmaConfig{8}),
            concatenate("perseid::internal::cuda::matmul_fma<", kConfig,
                        "{.each = 8, .fixup = false, .activation = decltype(", kConfig,
                        "::activation)(0), .amax = false}>"));
}

}  // namespace
}  // namespace perseid::internal
