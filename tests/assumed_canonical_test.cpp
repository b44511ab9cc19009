// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which kernels make products in canonical order on GPUs, without one: the same for 1, 2, 4 and 8
// ranks.
#include "assumed_tools.hpp"

namespace perseid {
namespace {

struct CanonicalProduct {
  const char* capability;
  DType dtype;
  int64_t m, n, k;       // of all ranks
  const char* reduced;   // the kernels of a sum over ranks
  const char* gathered;  // and of a gathered operand, whatever part of n a rank has
  const char* asked = nullptr;
};

// On each rank the words of `explain` about the product.
std::string reduce(const CanonicalProduct& product, int32_t ranks, const Context& context,
                   const Group& group) {
  return MatmulReduce(context, group,
                      {.dtype = product.dtype,
                       .m = product.m,
                       .n = product.n,
                       .k = product.k / ranks,
                       .implementation = product.asked,
                       .fusion = Fusion::kFused,
                       .canonical = true})
      .explain();
}
std::string gather(const CanonicalProduct& product, int32_t ranks, const Context& context,
                   const Group& group) {
  const int64_t rank = group.rank();
  return AllGatherMatmul(context, group,
                         {.dtype = product.dtype,
                          .m = (rank + 1) * product.m / ranks - rank * product.m / ranks,
                          .k = product.k,
                          .products = {{.n = product.n / ranks}, {.n = product.n}, {.n = 8}},
                          .implementation = product.asked,
                          .fusion = Fusion::kFused,
                          .canonical = true})
      .explain();
}

TEST(AssumedCanonicalOrder, HasTheSameKernelsForAnyNumberOfRanks) {
  const char *fma = "cuda:fma", *tensor_core = "cuda:tensor_core", *sm90 = "cuda:sm90";
  std::vector<CanonicalProduct> products;
  for (const char* capability : {"sm_80", "sm_90", "sm_103"}) {
    const bool hopper = std::string(capability) == "sm_90";
    const char *of_16_bits = hopper ? sm90 : tensor_core, *of_f32 = of_16_bits;
    products.insert(
        products.end(),
        {{capability, f32, 512, 512, 1024, of_f32, of_f32},
         {capability, f32, 512, 510, 1048, tensor_core, of_f32},
         // A leaf is below the size from which multiply-add is slower; all of the depth is not.
         {capability, f32, 512, 512, 1016, fma, of_f32},
         {capability, f32, 512, 64, 1 << 16, fma, of_f32},
         {capability, f32, 16, 16, 8, fma, of_f32},
         {capability, f32, 512, 512, 4096, fma, fma, fma},
         {capability, f64, 100, 24, 72, tensor_core, tensor_core},
         {capability, f64, 512, 512, 4096, tensor_core, tensor_core},
         {capability, bf16, 512, 512, 4096, of_16_bits, of_16_bits},
         {capability, bf16, 64, 33, 4096, tensor_core, of_16_bits},
         {capability, bf16, 512, 512, 4096, tensor_core, tensor_core, tensor_core},
         // Leaves that are no whole steps, nor whole vectors.
         {capability, f16, 512, 512, 4096 + 64, of_16_bits, of_16_bits},
         {capability, f16, 64, 24, 520, of_16_bits, of_16_bits},
         {capability, bf16, 64, 24, 8, of_16_bits, of_16_bits},
         {capability, bf16, 64, 24, 0, tensor_core, tensor_core}});
  }
  for (const CanonicalProduct& product : products)
    for (const int32_t ranks : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message()
                   << product.capability << ", dtype " << static_cast<int>(product.dtype) << ", k "
                   << product.k << ", n " << product.n << ", ranks " << ranks);
      const auto context = [&] { return Context::assumed(product.capability); };
      for (const std::string& text : explained(ranks, [&](const Group& group) {
             return reduce(product, ranks, context(), group);
           })) {
        expect_has(text, std::string("one ") + product.reduced + " whose result leaves");
        // Several leaves that are products are complete at once.
        const bool fused = (product.reduced == sm90 && product.dtype != f32) || ranks == 8;
        expect_has(text, fused ? "fused as asked for" : "unfused: the kernels that sum its leaves");
      }
      for (const std::string& text : explained(
               ranks, [&](const Group& group) { return gather(product, ranks, context(), group); }))
        expect_has(text, std::string("each product is one ") + product.gathered);
    }
}

// Any depth.
TEST(AssumedCanonicalOrder, GathersDepthsThatTmaTakesByItAndOthersNot) {
  for (const auto& [k, kernels] : {std::pair{40, "cuda:sm90"}, {45, "cuda:tensor_core"}})
    for (const std::string& text : explained(2, [&, k = k](const Group& group) {
           return gather({"sm_90", bf16, 64, 48, k, "", ""}, 2, Context::assumed("sm_90"), group);
         }))
      expect_has(text, std::string("each product is one ") + kernels);
}

TEST(AssumedCanonicalOrder, IsRefusedWhereItCannotHold) {
  const auto expect_refused = [](const char* sentence, const CanonicalProduct& product,
                                 const char* of_last = nullptr) {
    for (const std::string& text : explained(2, [&](const Group& group) {
           const bool other = of_last != nullptr && group.rank() == 1;
           return reduce(product, 2, Context::assumed(other ? of_last : product.capability), group);
         }))
      expect_has(text, sentence);
  };
  expect_refused("in canonical order of a multiple of 4 columns, got n 66",
                 {"sm_90", bf16, 64, 66, 520, "", "", "cuda:sm90"});
  expect_refused("with n that is a multiple of 4 where sums are over ranks, got 510",
                 {"sm_90", f32, 512, 510, 2048, "", "", "cuda:sm90"});
  expect_refused("of 8-bit types does not sum in leaves", {"sm_90", f8e4m3, 64, 64, 512, "", ""});
  expect_refused("made for f16, bf16, f32 and f64, got f8e4m3",
                 {"sm_80", f8e4m3, 64, 64, 512, "", ""});
  expect_refused("compute capability is 9.0 on rank 1 and 8.0 on rank 0; pass the same",
                 {"sm_80", bf16, 64, 64, 512, "", ""}, "sm_90");
  for (const std::string& text : explained(2, [&](const Group& group) {
         const char* asked = group.rank() == 1 ? "cuda:tensor_core" : nullptr;
         return gather({"sm_90", bf16, 64, 64, 512, "", "", asked}, 2, Context::assumed("sm_90"),
                       group);
       }))
    expect_has(text,
               "rank 1 computes by cuda:tensor_core, cuda:tensor_core, cuda:tensor_core and rank 0 "
               "by cuda:sm90, cuda:sm90, cuda:sm90; ask for the same");
  // More than 2^30 tiles would have no order of their own.
  for (const std::string& text : explained(2, [&](const Group& group) {
         return gather({"sm_90", f32, 64, int64_t{1} << 32, 8, "", ""}, 2,
                       Context::assumed("sm_90"), group);
       }))
    expect_has(text, "expected at most 1073741824");
}

}  // namespace
}  // namespace perseid
