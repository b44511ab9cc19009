// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/device.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/json.hpp"
#include "base/observe.hpp"
#include "cuda/runtime/cache.hpp"
#include "dispatch/choose.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {
namespace {

constexpr const char* kVariables[] = {
    "PERSEID_CPU_ISA",     "PERSEID_FORCE_IMPL",   "PERSEID_DISABLE_IMPL", "PERSEID_DETERMINISTIC",
    "PERSEID_NUM_THREADS", "PERSEID_DISABLE_CUDA", "PERSEID_CACHE_DIR",    "PERSEID_NVRTC",
    "PERSEID_PACK",        "PERSEID_TUNE",         "PERSEID_VERBOSE",      "PERSEID_TRACE"};

std::string value_of(const Device& device, std::string_view name) {
  for (const Variable& variable : device.environment)
    if (name == variable.name) return variable.value;
  return "";
}

Status read_thread_count(const std::string& text, int32_t* threads) {
  const char* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, *threads);
  if (failure == std::errc() && rest == end && *threads >= 1 && *threads <= kMostWorkers) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "PERSEID_NUM_THREADS is \"", text,
                       "\", expected a number from 1 to ", kMostWorkers,
                       "; unset it for one thread per CPU of the process");
}

using File = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { std::fclose(file); })>;

// Without std::ifstream, which reports a failed allocation as the end of the file.
bool read_line(std::FILE* file, std::string* line) {
  line->clear();
  char part[512];
  while (std::fgets(part, sizeof part, file) != nullptr) {
    *line += part;
    if (!line->ends_with('\n')) continue;
    line->pop_back();
    return true;
  }
  return !line->empty();
}

// The first line of a small file of the kernel, "" where there is none.
std::string first_line(const std::string& path) {
  const File file(std::fopen(path.c_str(), "re"));
  std::string line;
  if (file != nullptr) read_line(file.get(), &line);
  return line;
}

std::string cpu_model() {
  const File file(std::fopen("/proc/cpuinfo", "re"));
  for (std::string line; file != nullptr && read_line(file.get(), &line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// "32K" and "36M", as sysfs writes them.
int64_t bytes_of(const std::string& size) {
  int64_t count = 0;
  const char* end = size.data() + size.size();
  const auto [rest, failure] = std::from_chars(size.data(), end, count);
  if (failure != std::errc()) return 0;
  return rest == end ? count : *rest == 'K' ? count << 10 : *rest == 'M' ? count << 20 : count;
}

void write_caches(JsonWriter& json) {
  json.key("caches").begin_array();
  for (int index = 0;; ++index) {
    const std::string folder = concatenate("/sys/devices/system/cpu/cpu0/cache/index", index, "/");
    const std::string level = first_line(folder + "level");
    if (level.empty()) break;
    json.begin_object()
        .field("level", bytes_of(level))
        .field("type", first_line(folder + "type"))
        .field("bytes", bytes_of(first_line(folder + "size")))
        .field("shared_by_cpus", first_line(folder + "shared_cpu_list"))
        .end_object();
  }
  json.end_array();
}

Status read_names(const char* what, const std::string& names, std::vector<std::string>* read) {
  if (names.empty()) return {};
  if (Status status = check_names(what, names); !status.ok()) return status;
  *read = names_of(names);
  return {};
}

Status read_determinism(const std::string& text, Determinism* determinism) {
  if (text == "" || text == "0") {
    *determinism = Determinism::kByPlan;
  } else if (text == "1") {
    *determinism = Determinism::kOn;
  } else if (text == "warn") {
    *determinism = Determinism::kWarn;
  } else {
    return Status::error(PERSEID_INVALID_ARGUMENT, "PERSEID_DETERMINISTIC is \"", text,
                         "\", expected 0 (as each plan says), 1 (every plan) or warn; or unset it");
  }
  return {};
}

Status read_environment(const Settings& settings, Device* device) {
  if (Status status = observe_environment(); !status.ok()) return status;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    device->environment.push_back({name, value == nullptr ? "" : value, value != nullptr});
  }
  device->forced_implementation = value_of(*device, "PERSEID_FORCE_IMPL");
  std::vector<std::string> checked;
  Status status = read_names("PERSEID_FORCE_IMPL", device->forced_implementation, &checked);
  if (status.ok())
    status = read_names("PERSEID_DISABLE_IMPL", value_of(*device, "PERSEID_DISABLE_IMPL"),
                        &device->disabled_by_environment);
  if (status.ok())
    status = read_names("context: disable", settings.disabled_implementations,
                        &device->disabled_by_options);
  if (status.ok())
    status = read_determinism(value_of(*device, "PERSEID_DETERMINISTIC"), &device->determinism);
  if (settings.determinism != Determinism::kDefault) device->determinism = settings.determinism;
  return status;
}

void write_cpu(JsonWriter& json, const Device& device) {
  json.field("type", "cpu").field("model", cpu_model());
  json.field("cpus", cpu::available_cpus()).field("workers", device.workers());
  json.field("isa", device.kernels->isa).field("bf16_dot", device.kernels->bf16_dot);
  json.key("isas").begin_array();
  for (const cpu::KernelTable* table : cpu::available_kernel_tables()) json.value(table->isa);
  json.end_array();
  write_caches(json);
  json.field("memory_bytes",
             static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * int64_t{sysconf(_SC_PAGESIZE)});
}

void write_gpu(JsonWriter& json, const cuda::Gpu& gpu) {
  const cuda::GpuFacts& facts = gpu.facts();
  int32_t driver = 0;
  if (!facts.assumed) gpu.driver().version(&driver);
  json.field("type", "cuda").field("index", facts.index).field("model", facts.name);
  json.field("capability", concatenate(facts.major, ".", facts.minor));
  json.field("multiprocessors", facts.multiprocessors).field("l2_bytes", facts.l2_bytes);
  json.field("memory_bytes", static_cast<int64_t>(facts.memory_bytes));
  json.field("assumed", facts.assumed);
  json.key("driver_cuda");
  facts.assumed ? json.null() : json.value(concatenate(driver / 1000, ".", driver % 1000 / 10));
  cuda::Version version;
  json.key("nvrtc");
  cuda::compiler_version(&version).ok() ? json.value(concatenate(version.major, ".", version.minor))
                                        : json.null();
  json.field("architecture", facts.architecture);
  json.field("packed_modules", static_cast<int64_t>(cuda::kernel_pack().size()));
  json.field("module_cache", cuda::cache_folder());
}

}  // namespace

Status open_cuda(int32_t index, const Settings& settings, std::shared_ptr<const Device>* device) {
  const auto opened = std::make_shared<Device>();
  if (Status status = read_environment(settings, opened.get()); !status.ok()) return status;
  if (Status status = cuda::Gpu::open(index, &opened->gpu); !status.ok())
    return Status::error(status.code(), "context: ", status.sentence());
  const std::string tune = value_of(*opened, "PERSEID_TUNE");
  if (tune != "" && tune != "0" && tune != "1")
    return Status::error(PERSEID_INVALID_ARGUMENT, "PERSEID_TUNE is \"", tune,
                         "\", expected 0 (the built-in choices) or 1; or unset it");
  const cuda::GpuFacts& facts = opened->gpu->facts();
  if (tune != "0")
    opened->tuning = std::make_unique<Tuning>(
        cuda::cache_folder(),
        concatenate(facts.name, ", ", facts.multiprocessors, " multiprocessors"),
        tunable_sources());
  *device = opened;
  return {};
}

Status assume_cuda(const char* capability, const Settings& settings,
                   std::shared_ptr<const Device>* device) {
  const auto opened = std::make_shared<Device>();
  if (Status status = read_environment(settings, opened.get()); !status.ok()) return status;
  if (Status status = cuda::Gpu::assume(capability, &opened->gpu); !status.ok())
    return Status::error(status.code(), "context: ", status.sentence());
  *device = opened;
  return {};
}

Status open_cpu(std::unique_ptr<cpu::Executor> executor, int32_t threads, const Settings& settings,
                std::shared_ptr<const Device>* device) {
  const auto opened = std::make_shared<Device>();
  if (Status status = read_environment(settings, opened.get()); !status.ok()) return status;

  std::string error;
  opened->kernels = cpu::select_kernel_table(error);
  if (opened->kernels == nullptr) return Status::error(PERSEID_INVALID_ARGUMENT, error);

  if (executor == nullptr) {
    const std::string wanted = value_of(*opened, "PERSEID_NUM_THREADS");
    if (threads == 0 && !wanted.empty())
      if (Status status = read_thread_count(wanted, &threads); !status.ok()) return status;
    if (threads == 0) threads = min(cpu::available_cpus(), kMostWorkers);
    executor = cpu::make_thread_pool(threads);
  }
  opened->executor = std::move(executor);
  *device = opened;
  return {};
}

std::shared_ptr<const Device> with_executor(const Device& device,
                                            std::unique_ptr<cpu::Executor> executor) {
  return std::make_shared<const Device>(
      Device{.executor = std::move(executor),
             .kernels = device.kernels,
             .gpu = nullptr,
             .environment = device.environment,
             .forced_implementation = device.forced_implementation,
             .disabled_by_options = device.disabled_by_options,
             .disabled_by_environment = device.disabled_by_environment,
             .determinism = device.determinism,
             .tuning = nullptr});
}

std::string facts_json(const Device& device) {
  JsonWriter json;
  json.begin_object();
  json.field("version", concatenate(PERSEID_VERSION_MAJOR, ".", PERSEID_VERSION_MINOR, ".",
                                    PERSEID_VERSION_PATCH));
  json.field("abi_version", PERSEID_ABI_VERSION);
  json.key("device").begin_object();
  device.gpu != nullptr ? write_gpu(json, *device.gpu) : write_cpu(json, device);
  json.end_object();
  json.key("environment").begin_object();
  for (const Variable& variable : device.environment) {
    json.key(variable.name);
    variable.set ? json.value(variable.value) : json.null();
  }
  json.end_object().end_object();
  return json.text();
}

}  // namespace perseid::internal::dispatch
