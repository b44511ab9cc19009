// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "simd_vectors.hpp"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/simd/micro_gemm.hpp"
#include "cpu/simd/vector_math.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {
namespace {

struct Report {
  char* text;
  unsigned long size;

  bool ok() const { return text[0] == '\0'; }
  // Keeps the first failure alone.
  void expect(bool right, const char* what, double at, double got = 0, double wanted = 0) {
    if (!right && ok()) snprintf(text, size, "%s at %.9g: %.17g, not %.17g", what, at, got, wanted);
  }
};

template <class T>
constexpr T kInf = static_cast<T>(__builtin_inf());

template <class T>
bool same(T a, T b) {
  return memcmp(&a, &b, sizeof a) == 0;
}

// The first lane of an operation on vectors of one value each.
template <class V, class Operation>
typename V::Scalar lane(Operation operation) {
  typename V::Scalar out[V::kLanes];
  V::store(out, operation());
  return out[0];
}

template <class V>
void check_arithmetic(Report& report) {
  using T = typename V::Scalar;
  const T nan = static_cast<T>(__builtin_nan(""));
  const T values[] = {0, 1, -1, T(0.3), T(-7.25), T(1e10), T(3e-20), kInf<T>, -kInf<T>, nan};
  for (const T a : values) {
    for (const T b : values) {
      const auto x = V::set1(a), y = V::set1(b);
      const auto expect = [&](const char* what, T got, T wanted) {
        const bool right = wanted != wanted ? got != got : got == wanted;
        report.expect(right, what, static_cast<double>(a), static_cast<double>(got),
                      static_cast<double>(wanted));
      };
      expect("add", lane<V>([&] { return V::add(x, y); }), a + b);
      expect("sub", lane<V>([&] { return V::sub(x, y); }), a - b);
      expect("mul", lane<V>([&] { return V::mul(x, y); }), a * b);
      expect("div", lane<V>([&] { return V::div(x, y); }), a / b);
      expect("max", lane<V>([&] { return V::max(x, y); }), a > b ? a : b);
      expect("min", lane<V>([&] { return V::min(x, y); }), a < b ? a : b);
      expect("less", V::any(V::less(x, y)) ? 1 : 0, a < b ? 1 : 0);
      expect("is_nan", V::any(V::is_nan(x)) ? 1 : 0, a != a ? 1 : 0);
      expect("either", V::any(V::either(V::is_nan(x), V::is_nan(y))) ? 1 : 0,
             a != a || b != b ? 1 : 0);
      expect("select", lane<V>([&] { return V::select(V::less(x, y), x, y); }), a < b ? a : b);
    }
  }
  if (V::kLanes > 1) {  // one lane: as the compiler contracts
    const T above = 1 + (sizeof(T) == 4 ? T(0x1p-20) : T(0x1p-50));
    const T fused = static_cast<T>(
        sizeof(T) == 4 ? double{fmaf(static_cast<float>(above), static_cast<float>(above), -1)}
                       : fma(above, above, -1));
    const auto x = V::set1(above), one = V::set1(1);
    report.expect(same(lane<V>([&] { return V::fma(x, x, V::set1(-1)); }), fused), "fma", 1);
    report.expect(same(lane<V>([&] { return V::fms(x, x, one); }), fused), "fms", 1);
  }
  for (const T a : {T(2.75), T(-2.75), T(5), T(-3), T(0)}) {
    const T got = lane<V>([&] { return V::fraction(V::set1(a)); });
    report.expect(got == a - static_cast<T>(floor(static_cast<double>(a))), "fraction",
                  static_cast<double>(a), static_cast<double>(got));
  }
}

// Lanes in their places: loads, stores, masks, sums and the transposition.
template <class V>
void check_lanes(Report& report) {
  using T = typename V::Scalar;
  constexpr int kLanes = V::kLanes;
  T in[kLanes], out[kLanes + 1];
  for (int i = 0; i < kLanes; ++i) in[i] = static_cast<T>(i + 1);
  report.expect(V::reduce_add(V::load(in)) == static_cast<T>(kLanes * (kLanes + 1) / 2),
                "reduce_add", kLanes);
  report.expect(V::reduce_max(V::load(in)) == static_cast<T>(kLanes), "reduce_max", kLanes);
  in[0] = static_cast<T>(100);
  report.expect(V::reduce_max(V::load(in)) == static_cast<T>(100), "reduce_max", 0);
  for (int n = 0; n <= kLanes; ++n) {
    V::store(out, V::select(V::first(n), V::set1(1), V::set1(2)));
    for (int i = 0; i < kLanes; ++i) report.expect(out[i] == (i < n ? 1 : 2), "first", n);
  }
  uint8_t bytes[16] = {};
  for (int i = 0; i < kLanes; ++i)
    bytes[i] = static_cast<uint8_t>(i % 3 == 0 ? 0 : i % 2 ? 128 : 1);
  V::store(out, V::select(V::nonzero_bytes(bytes), V::set1(1), V::set1(2)));
  for (int i = 0; i < kLanes; ++i)
    report.expect(out[i] == (bytes[i] != 0 ? 1 : 2), "nonzero_bytes", i);

  typename V::Reg rows[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) in[j] = static_cast<T>(i * kLanes + j);
    rows[i] = V::load(in);
  }
  V::transpose(rows);
  for (int i = 0; i < kLanes; ++i) {
    V::store(out, rows[i]);
    for (int j = 0; j < kLanes; ++j)
      report.expect(out[j] == static_cast<T>(j * kLanes + i), "transpose", i);
  }
}

// Two pages of memory, of which the second must not be touched.
class GuardedPage {
 public:
  static constexpr unsigned long kPage = 65536;  // a multiple of every machine's page
  GuardedPage()
      : base_(
            mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    mprotect(end(), kPage, PROT_NONE);
  }
  ~GuardedPage() { munmap(base_, 2 * kPage); }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;
  char* end() const { return static_cast<char*>(base_) + kPage; }

 private:
  void* base_;
};

// n elements of type T at the very end of a page.
template <class V, class T>
void check_partial(Report& report) {
  const GuardedPage page;
  for (int n = 0; n < V::kLanes; ++n) {
    T* at = reinterpret_cast<T*>(page.end()) - n;
    at[-1] = convert<T>(77.0f);
    for (int i = 0; i < n; ++i) at[i] = convert<T>(static_cast<float>(i + 1));
    typename V::Scalar out[V::kLanes];
    const auto loaded = V::load_partial(at, n);
    V::store(out, loaded);
    for (int i = 0; i < V::kLanes; ++i)
      report.expect(out[i] == static_cast<typename V::Scalar>(i < n ? i + 1 : 0), "load_partial",
                    n);
    for (int i = 0; i < n; ++i) at[i] = convert<T>(0.0f);
    V::store_partial(at, loaded, n);
    for (int i = 0; i < n; ++i)
      report.expect(convert<float>(at[i]) == static_cast<float>(i + 1), "store_partial", n);
    report.expect(convert<float>(at[-1]) == 77.0f, "before store_partial", n);
  }
}

// Bit for bit as math/dtype.hpp, in both directions.
template <class T>
void check_conversions(Report& report) {
  for (uint32_t bits = 0; bits < 0x10000; bits += F32::kLanes) {
    T in[F32::kLanes];
    float out[F32::kLanes];
    for (int i = 0; i < F32::kLanes; ++i)
      in[i].bits = static_cast<uint16_t>(bits + static_cast<uint32_t>(i));
    F32::store(out, F32::load(in));
    for (int i = 0; i < F32::kLanes; ++i)
      report.expect(same(out[i], to_float(in[i])), "load of 16 bits", in[i].bits);
  }
  const uint32_t low[] = {0,      1,      0xfff,  0x1000, 0x1001, 0x2000,
                          0x3000, 0x7fff, 0x8000, 0x8001, 0xefff, 0xffff};
  for (uint32_t high = 0; high < 0x10000 && report.ok(); ++high) {
    for (uint32_t k = 0; k < sizeof low / sizeof low[0]; ++k) {
      const float value = float_from_bits(high << 16 | low[k]);
      T out[F32::kLanes];
      F32::store(out, F32::set1(value));
      const uint16_t wanted = convert<T>(value).bits;
      report.expect(out[0].bits == wanted && out[F32::kLanes - 1].bits == wanted,
                    "store of 16 bits", high << 16 | low[k], out[0].bits, wanted);
    }
  }
}

template <class V, class Function>
void check_exp2(Report& report, Function function, double error) {
  using T = typename V::Scalar;
  const auto at = [&](T x) { return lane<V>([&] { return function(V::set1(x)); }); };
  const int lowest = sizeof(T) == 4 ? -126 : -1022, highest = sizeof(T) == 4 ? 127 : 1023;
  for (double x = lowest; x < highest; x += (x > -40 && x < 40 ? 0.00137 : 0.137)) {
    const T argument = static_cast<T>(x);
    const double wanted = ::exp2(static_cast<double>(argument));
    const double got = static_cast<double>(at(argument));
    report.expect(fabs(got - wanted) <= error * wanted, "exp2", x, got, wanted);
  }
  for (int n = lowest; n <= highest; ++n)
    report.expect(at(static_cast<T>(n)) == static_cast<T>(ldexp(1, n)), "exp2 of a whole number",
                  n);
  for (const T x : {-kInf<T>, static_cast<T>(-1e30), static_cast<T>(8 * lowest)})
    report.expect(same(at(x), T{0}), "exp2 far below", static_cast<double>(x),
                  static_cast<double>(at(x)));
  const T nan = at(static_cast<T>(__builtin_nan("")));
  report.expect(nan != nan, "exp2 of NaN", 0, static_cast<double>(nan));
}

// Every size of tile, of operands whose sums are whole numbers and so exact in any order.
template <class Dot>
void check_micro_gemm(Report& report) {
  using Scalar = typename Dot::Vector::Scalar;
  using Element = typename Dot::Element;
  constexpr int kColumns = tile_columns<Dot>, kRows = Dot::kRows, kSteps = 5;
  static Element a[(2 * kRows + 1) * kSteps], b[kSteps * kColumns];
  static Scalar c[(2 * kRows + 2) * kColumns];
  const auto element = [](int first, int second) {
    if constexpr (Dot::kDepth == 1) {
      return static_cast<Element>(first);
    } else {
      return static_cast<Element>(uint32_t{to_bf16(static_cast<float>(first)).bits} |
                                  uint32_t{to_bf16(static_cast<float>(second)).bits} << 16);
    }
  };
  const auto a_at = [](int i, int k) { return (i * 7 + k * 3) % 11 - 5; };
  const auto b_at = [](int k, int j) { return (k * 5 + j * 2) % 13 - 6; };
  for (int i = 0; i <= 2 * kRows; ++i)
    for (int s = 0; s < kSteps; ++s)
      a[i * kSteps + s] = element(a_at(i, s * Dot::kDepth), a_at(i, s * Dot::kDepth + 1));
  for (int s = 0; s < kSteps; ++s)
    for (int j = 0; j < kColumns; ++j)
      b[s * kColumns + j] = element(b_at(s * Dot::kDepth, j), b_at(s * Dot::kDepth + 1, j));
  for (int rows = 1; rows <= 2 * kRows + 1; ++rows) {
    for (int columns = 1; columns <= kColumns; ++columns) {
      for (int accumulate = 0; accumulate < 2; ++accumulate) {
        for (int i = 0; i < (2 * kRows + 2) * kColumns; ++i) c[i] = 1000;
        panel_gemm<Dot>({a, kSteps, 1}, {b, kColumns}, {c, kColumns}, rows, columns, kSteps,
                        accumulate != 0);
        for (int i = 0; i <= rows; ++i) {
          for (int j = 0; j < columns; ++j) {
            int sum = accumulate != 0 || i == rows ? 1000 : 0;
            if (i < rows)
              for (int k = 0; k < kSteps * Dot::kDepth; ++k) sum += a_at(i, k) * b_at(k, j);
            report.expect(c[i * kColumns + j] == static_cast<Scalar>(sum), "panel_gemm",
                          rows * 1000 + columns, static_cast<double>(c[i * kColumns + j]), sum);
          }
        }
      }
    }
  }
}

}  // namespace

void check_vectors(char* failure, unsigned long size) {
  failure[0] = '\0';
  Report report{failure, size};
  check_arithmetic<F32>(report);
  check_arithmetic<F64>(report);
  check_lanes<F32>(report);
  check_lanes<F64>(report);
  check_partial<F32, float>(report);
  check_partial<F32, f16>(report);
  check_partial<F32, bf16>(report);
  check_partial<F64, double>(report);
  check_conversions<f16>(report);
  check_conversions<bf16>(report);
  check_exp2<F32>(
      report, [](F32::Reg x) { return exp2<F32>(x); }, 2.5e-7);
  check_exp2<F32>(
      report, [](F32::Reg x) { return exp2_approx(x); }, 3.1e-6);
  check_exp2<F64>(
      report, [](F64::Reg x) { return exp2<F64>(x); }, 5e-16);
  check_micro_gemm<F32Dot>(report);
  check_micro_gemm<F64Dot>(report);
  check_micro_gemm<DotOfBf16>(report);
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
