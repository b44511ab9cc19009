// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A product that runs while its weights are read: a thread reads a file chunk by chunk and signals
// each, and the product works on what is here. The file is read
// through a device of limited speed, so that reading takes about as long as computing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <perseid/perseid.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 192, kIn = 1024, kOut = 1536, kChunks = 12;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<float> waves(int64_t count, float frequency) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(frequency * static_cast<float>(i + 1));
  return values;
}

// The weights in a file, [kOut, kIn] row-major, read through a device of limited speed.
class SlowFile {
 public:
  SlowFile(const std::string& path, double mb_per_second)
      : file_(std::fopen(path.c_str(), "rb")), ms_per_byte_(1e-3 / mb_per_second) {
    if (file_ == nullptr) throw perseid::Error(PERSEID_IO_ERROR, "cannot open " + path);
  }
  ~SlowFile() { std::fclose(file_); }
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;

  void read(float* to, int64_t first_row, int64_t rows) {
    const auto start = Clock::now();
    const auto count = static_cast<size_t>(rows * kIn);
    std::fseek(file_, static_cast<long>(first_row * kIn * 4), SEEK_SET);
    if (std::fread(to, sizeof(float), count, file_) != count)
      throw perseid::Error(PERSEID_IO_ERROR, "the file of the weights ends early");
    const double ms = static_cast<double>(count * sizeof(float)) * ms_per_byte_;
    std::this_thread::sleep_until(start + std::chrono::microseconds(std::lround(1e3 * ms)));
  }

 private:
  std::FILE* file_;
  double ms_per_byte_;
};

void write_weights(const std::string& path) {
  const std::vector<float> weights = waves(kOut * kIn, 0.0007f);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const bool written = file != nullptr && std::fwrite(weights.data(), sizeof(float), weights.size(),
                                                      file) == weights.size();
  if (file == nullptr || std::fclose(file) != 0 || !written)
    throw perseid::Error(PERSEID_IO_ERROR, "cannot write " + path);
}

}  // namespace

// stream_weights [FOLDER [MB_PER_SECOND]]
int main(int argc, char** argv) try {
  const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/stream_weights.bin";
  const double speed = argc > 2 ? std::atof(argv[2]) : 200;
  write_weights(path);
  const auto context = perseid::Context::cpu();
  const std::vector<float> x = waves(kTokens * kIn, 0.013f);
  std::vector<float> w(static_cast<size_t>(kOut * kIn)), y(static_cast<size_t>(kTokens * kOut)),
      z(y);
  perseid::Workspace workspace;

  //! [plan]
  // y[tokens, out] = x[tokens, in] w^T, and w arrives in chunks of its rows: columns of w^T.
  const auto chunks = perseid::Chunks::even(kOut, kChunks);
  const perseid::Matmul streamed(context, {.m = kTokens, .n = kOut, .k = kIn, .async_b = chunks});
  std::vector<uint32_t> signals(kChunks, 0);  // the epoch before the first one
  uint32_t abort = 0;
  //! [plan]
  const perseid::Matmul plain(context, {.m = kTokens, .n = kOut, .k = kIn});
  plain.reserve(workspace);
  streamed.reserve(workspace);
  const perseid::Tensor input(x.data(), {kTokens, kIn});
  const auto weights = perseid::Tensor(w.data(), {kOut, kIn}).transposed();

  // One after the other.
  SlowFile file(path, speed);
  auto start = Clock::now();
  file.read(w.data(), 0, kOut);
  const double reading = since(start);
  start = Clock::now();
  plain.execute(nullptr,
                {.a = input, .b = weights, .c = perseid::Tensor(y.data(), {kTokens, kOut})},
                workspace);
  const double computing = since(start);

  // At the same time. What has not been read is NaN.
  std::fill(w.begin(), w.end(), std::nanf(""));
  start = Clock::now();
  //! [stream]
  const uint32_t epoch = 1;
  std::thread reader([&] {
    try {
      for (size_t c = 0; c < kChunks; ++c) {
        const int64_t row = chunks.begin[c];
        file.read(w.data() + row * kIn, row, chunks.begin[c + 1] - row);
        perseid::set_signal(&signals[c], epoch);
      }
    } catch (const std::exception&) {
      perseid::set_signal(&abort, 1);  // nobody waits for the rest
    }
  });
  const perseid::Arrival arrival = {.signals = signals.data(),
                                    .epoch = epoch,
                                    .deadline = std::chrono::seconds(10),
                                    .abort = &abort};
  std::string failure;
  try {
    streamed.execute(nullptr,
                     {.a = input,
                      .b = weights,
                      .c = perseid::Tensor(z.data(), {kTokens, kOut}),
                      .arrival_b = arrival},
                     workspace);
  } catch (const perseid::Error& error) {
    failure = error.what();  // such as "matmul: chunk 7 of b: not arrived within 10000 ms"
  }
  reader.join();
  //! [stream]
  const double together = since(start);
  std::remove(path.c_str());

  std::printf("read %.1f ms, compute %.1f ms: one after the other %.1f ms, streamed %.1f ms\n",
              reading, computing, reading + computing, together);
  if (!failure.empty()) std::fprintf(stderr, "%s\n", failure.c_str());
  return failure.empty() && y == z ? 0 : 1;  // the same bits
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
