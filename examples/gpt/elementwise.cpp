// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "elementwise.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr int64_t kRowGrain = 16;
constexpr double kEpsilon = 1e-6;
// The slowest pair turns by 1 / kSlowest at each position: little over a context of some hundreds.
constexpr double kSlowest = 500;

// Sums f(0) .. f(count - 1) in 16 lanes, so that the compiler may use vectors without reordering
// what is written here.
template <class R, class F>
inline R sum(int64_t count, const F& f) {
  constexpr int64_t kLanes = 16;
  R lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  R total = 0;
  for (; i < count; ++i) total += f(i);
  for (R lane : lanes) total += lane;
  return total;
}

inline double exponential(double x) { return std::exp(x); }

// e^x within 2 ulp, by powers of two and a polynomial: std::exp does not vectorise.
inline float exponential(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float n = (x * 1.44269504f + kMagic) - kMagic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// gelu(x) = x * sigmoid(2 c (x + 0.044715 x^3)), c = sqrt(2 / pi).
constexpr double kTwoC = 1.5957691216057308;
constexpr double kCubic = 0.044715;

template <class R>
inline R gelu_gate(R x) {
  const R z = R(kTwoC) * x * (1 + R(kCubic) * x * x);
  return 1 / (1 + exponential(-z));
}

}  // namespace

template <class R>
void embed(Threads& threads, const R* table, const uint8_t* tokens, int64_t rows, int64_t width,
           R* out) {
  threads.for_ranges(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::copy_n(table + tokens[row] * width, width, out + row * width);
  });
}

template <class R>
void embed_backward(Threads& threads, const R* grad_out, const uint8_t* tokens, int64_t rows,
                    int64_t vocabulary, int64_t width, R* grad_table) {
  // Threads share out the columns, so that each sum is taken in the order of the rows.
  threads.for_ranges(width, 32, [&](int64_t begin, int64_t end) {
    for (int64_t token = 0; token < vocabulary; ++token)
      std::fill(grad_table + token * width + begin, grad_table + token * width + end, R(0));
    for (int64_t row = 0; row < rows; ++row) {
      R* to = grad_table + tokens[row] * width;
      const R* from = grad_out + row * width;
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  });
}

template <class T>
void norm(Threads& threads, const Real<T>* x, int64_t rows, int64_t width, T* out,
          Real<T>* inverse_rms) {
  using R = Real<T>;
  threads.for_ranges(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const R* from = x + row * width;
      T* to = out + row * width;
      const R squares = sum<R>(width, [from](int64_t i) { return from[i] * from[i]; });
      const R scale = 1 / std::sqrt(squares / static_cast<R>(width) + R(kEpsilon));
      for (int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(from[i] * scale);
      inverse_rms[row] = scale;
    }
  });
}

template <class T>
void norm_backward(Threads& threads, const Real<T>* x, const Real<T>* inverse_rms,
                   const T* grad_out, int64_t rows, int64_t width, Real<T>* grad_x,
                   T* grad_x_rounded) {
  using R = Real<T>;
  threads.for_ranges(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const R* from = x + row * width;
      const T* dy = grad_out + row * width;
      R* dx = grad_x + row * width;
      T* rounded = grad_x_rounded + row * width;
      const R scale = inverse_rms[row];
      const R dot =
          sum<R>(width, [from, dy](int64_t i) { return from[i] * static_cast<R>(dy[i]); });
      const R along = dot * scale * scale * scale / static_cast<R>(width);
      for (int64_t i = 0; i < width; ++i) {
        dx[i] += scale * static_cast<R>(dy[i]) - along * from[i];
      }
      if constexpr (!std::is_same_v<T, R>) {
        for (int64_t i = 0; i < width; ++i) rounded[i] = static_cast<T>(dx[i]);
      }
    }
  });
}

template <class T>
void gelu(Threads& threads, const T* x, int64_t count, T* out) {
  using R = Real<T>;
  threads.for_ranges(count, 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const R value = static_cast<R>(x[i]);
      out[i] = static_cast<T>(value * gelu_gate(value));
    }
  });
}

template <class T>
void gelu_backward(Threads& threads, const T* x, int64_t count, T* grad) {
  using R = Real<T>;
  threads.for_ranges(count, 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const R value = static_cast<R>(x[i]);
      const R gate = gelu_gate(value);
      const R slope =
          gate + value * gate * (1 - gate) * R(kTwoC) * (1 + R(3 * kCubic) * value * value);
      grad[i] = static_cast<T>(static_cast<R>(grad[i]) * slope);
    }
  });
}

template <class R>
RotaryTable<R>::RotaryTable(const std::vector<int64_t>& positions, int64_t head_dim)
    : length(std::ssize(positions)),
      half(head_dim / 2),
      cosine(length * half),
      sine(length * half) {
  for (int64_t row = 0; row < length; ++row) {
    const auto position = static_cast<double>(positions[static_cast<size_t>(row)]);
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          position * std::pow(kSlowest, -static_cast<double>(i) / static_cast<double>(half));
      cosine.data()[row * half + i] = static_cast<R>(std::cos(angle));
      sine.data()[row * half + i] = static_cast<R>(std::sin(angle));
    }
  }
}

template <class T>
void rotate(Threads& threads, const RotaryTable<Real<T>>& table, Turn turn, int64_t rows,
            int64_t heads, int64_t stride, T* x) {
  using R = Real<T>;
  const R sign = turn == Turn::kForward ? R(1) : R(-1);
  const int64_t half = table.half;
  threads.for_ranges(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const R* cosine = table.cosine.data() + row % table.length * half;
      const R* sine = table.sine.data() + row % table.length * half;
      for (int64_t head = 0; head < heads; ++head) {
        T* first = x + row * stride + head * 2 * half;
        T* second = first + half;
        for (int64_t i = 0; i < half; ++i) {
          const R a = static_cast<R>(first[i]);
          const R b = static_cast<R>(second[i]);
          first[i] = static_cast<T>(a * cosine[i] - sign * b * sine[i]);
          second[i] = static_cast<T>(b * cosine[i] + sign * a * sine[i]);
        }
      }
    }
  });
}

// The three element types of the example; BFloat16 shares what works on Real<T> alone with float.
template void embed(Threads&, const float*, const uint8_t*, int64_t, int64_t, float*);
template void embed(Threads&, const double*, const uint8_t*, int64_t, int64_t, double*);
template void embed_backward(Threads&, const float*, const uint8_t*, int64_t, int64_t, int64_t,
                             float*);
template void embed_backward(Threads&, const double*, const uint8_t*, int64_t, int64_t, int64_t,
                             double*);
template struct RotaryTable<float>;
template struct RotaryTable<double>;
template void norm<float>(Threads&, const float*, int64_t, int64_t, float*, float*);
template void norm_backward<float>(Threads&, const float*, const float*, const float*, int64_t,
                                   int64_t, float*, float*);
template void gelu(Threads&, const float*, int64_t, float*);
template void gelu_backward(Threads&, const float*, int64_t, float*);
template void rotate<float>(Threads&, const RotaryTable<float>&, Turn, int64_t, int64_t, int64_t,
                            float*);
template void norm<BFloat16>(Threads&, const float*, int64_t, int64_t, BFloat16*, float*);
template void norm_backward<BFloat16>(Threads&, const float*, const float*, const BFloat16*,
                                      int64_t, int64_t, float*, BFloat16*);
template void gelu(Threads&, const BFloat16*, int64_t, BFloat16*);
template void gelu_backward(Threads&, const BFloat16*, int64_t, BFloat16*);
template void rotate<BFloat16>(Threads&, const RotaryTable<float>&, Turn, int64_t, int64_t, int64_t,
                               BFloat16*);
template void norm<double>(Threads&, const double*, int64_t, int64_t, double*, double*);
template void norm_backward<double>(Threads&, const double*, const double*, const double*, int64_t,
                                    int64_t, double*, double*);
template void gelu(Threads&, const double*, int64_t, double*);
template void gelu_backward(Threads&, const double*, int64_t, double*);
template void rotate<double>(Threads&, const RotaryTable<double>&, Turn, int64_t, int64_t, int64_t,
                             double*);

}  // namespace gpt
