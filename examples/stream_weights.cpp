// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A product that runs while its weights are read, on the CPU or on a GPU: a thread reads a file
// chunk by chunk, copies each to the device and signals it, and the product works on what is here.
// For the CPU the file is read slowly, so that reading takes about as long as computing.
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <perseid/perseid.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Bits = std::vector<uint16_t>;  // of bf16

constexpr int64_t kChunks = 12;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Bits waves(int64_t count, float frequency) {
  Bits values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = std::sin(frequency * static_cast<float>(i + 1));
    values[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  return values;
}

void transfer(const std::string& path, const char* mode, long at, uint16_t* data, size_t count) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) throw perseid::Error(PERSEID_IO_ERROR, "cannot open " + path);
  std::fseek(file, at, SEEK_SET);
  const size_t done =
      *mode == 'r' ? std::fread(data, 2, count, file) : std::fwrite(data, 2, count, file);
  if (std::fclose(file) != 0 || done != count)
    throw perseid::Error(PERSEID_IO_ERROR, "cannot read or write " + path);
}

}  // namespace

// stream_weights [FOLDER [DEVICE]]; DEVICE: cpu, or the number of a GPU.
int main(int argc, char** argv) try {
  const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/stream_weights.bin";
  const bool on_cpu = argc < 3 || std::strcmp(argv[2], "cpu") == 0;
  const auto context =
      on_cpu ? perseid::Context::cpu() : perseid::Context::cuda(std::atoi(argv[2]));
  // On a GPU each thread has a stream of its own, which does not wait for the other's.
  const perseid::Stream stream = on_cpu ? nullptr : reinterpret_cast<perseid::Stream>(2);
  const int64_t tokens = on_cpu ? 192 : 32768, in = on_cpu ? 1024 : 4096, out = 3 * in / 2;
  Bits file = waves(out * in, 0.0007f), inputs = waves(tokens * in, 0.013f);
  transfer(path, "wb", 0, file.data(), file.size());
  const auto read = [&](int64_t row, int64_t rows) {
    const auto end = Clock::now() + std::chrono::microseconds(on_cpu ? rows * in / 250 : 0);
    transfer(path, "rb", static_cast<long>(2 * row * in), file.data(),
             static_cast<size_t>(rows * in));
    std::this_thread::sleep_until(end);
  };
  const perseid::Memory x(context, 2 * inputs.size()), w(context, 2 * file.size()),
      y(context, 2 * static_cast<size_t>(tokens * out));
  context.copy(x.data(), inputs.data(), x.size());

  //! [plan]
  // y[tokens, out] = x[tokens, in] w^T, and w arrives in chunks of its rows: columns of w^T.
  const auto chunks = perseid::Chunks::even(out, kChunks);
  const perseid::Matmul streamed(
      context, {.dtype = perseid::bf16, .m = tokens, .n = out, .k = in, .async_b = chunks});
  const perseid::Memory signals(context, kChunks * sizeof(uint32_t));
  context.copy(signals.data(), std::vector<uint32_t>(kChunks, 0).data(), signals.size());
  auto* const signal = static_cast<uint32_t*>(signals.data());
  //! [plan]
  const perseid::Matmul plain(context, {.dtype = perseid::bf16, .m = tokens, .n = out, .k = in});
  const perseid::Memory scratch(context, streamed.workspace_size() + plain.workspace_size() + 1);
  const std::span<std::byte> workspace = scratch;
  const auto view = [&](const perseid::Memory& of, int64_t rows, int64_t columns) {
    return perseid::Tensor(of.data(), perseid::bf16, {rows, columns}, {}, context.device());
  };
  const perseid::MatmulArguments arguments = {
      .a = view(x, tokens, in), .b = view(w, out, in).transposed(), .c = view(y, tokens, out)};
  const auto fetch = [&] {
    Bits found(y.size() / 2);
    context.copy(found.data(), y.data(), y.size());
    return found;
  };

  // One after the other; the first product is not timed.
  plain.execute(stream, arguments, workspace);
  context.synchronize(stream);
  auto start = Clock::now();
  read(0, out);
  context.copy(w.data(), file.data(), w.size(), stream);
  const double reading = since(start);
  start = Clock::now();
  plain.execute(stream, arguments, workspace);
  context.synchronize(stream);
  const double computing = since(start);
  const Bits expected = fetch();

  // At the same time. What has not been read is NaN.
  context.copy(w.data(), Bits(file.size(), 0xffff).data(), w.size());
  start = Clock::now();
  //! [stream]
  const uint32_t epoch = 1;
  uint32_t failed = 0;
  std::thread reader([&] {
    try {
      for (size_t c = 0; c < kChunks; ++c) {
        const int64_t row = chunks.begin[c], rows = chunks.begin[c + 1] - row;
        read(row, rows);
        context.copy(static_cast<uint16_t*>(w.data()) + row * in, file.data(),
                     2 * static_cast<size_t>(rows * in), stream);
        perseid::set_signal(context, signal + c, epoch, stream);  // after the copy
      }
    } catch (const std::exception&) {
      perseid::set_signal(&failed, 1);  // nobody waits for the rest
    }
  });
  perseid::MatmulArguments arriving = arguments;
  arriving.arrival_b = {.signals = signal,
                        .epoch = epoch,
                        .deadline = std::chrono::seconds(10),
                        // A GPU reads the word in page-locked memory alone.
                        .abort = on_cpu ? &failed : nullptr};
  bool complete = true;
  try {
    streamed.execute(stream, arriving, workspace);
    context.synchronize(stream);
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());  // such as "matmul: chunk 7 of b: not ..."
    complete = false;
  }
  reader.join();
  //! [stream]
  std::printf("read %.1f ms, compute %.1f ms: one after the other %.1f ms, streamed %.1f ms\n",
              reading, computing, reading + computing, since(start));
  std::remove(path.c_str());
  return complete && fetch() == expected ? 0 : 1;  // the same bits
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
