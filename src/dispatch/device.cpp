// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/device.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>

#include "dispatch/choose.hpp"
#include "dispatch/json.hpp"

namespace perseid::dispatch {
namespace {

constexpr const char* kVariables[] = {"PERSEID_CPU_ISA", "PERSEID_FORCE_IMPL",
                                      "PERSEID_NUM_THREADS"};

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

// The first line of a small file of the kernel, "" where there is none.
std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
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

}  // namespace

Status open_cpu(std::unique_ptr<cpu::Executor> executor, int32_t threads,
                std::shared_ptr<const Device>* device) {
  const auto opened = std::make_shared<Device>();
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    opened->environment.push_back({name, value == nullptr ? "" : value, value != nullptr});
  }
  opened->forced_implementation = value_of(*opened, "PERSEID_FORCE_IMPL");
  if (!opened->forced_implementation.empty())
    if (Status status = check_forced_name(opened->forced_implementation); !status.ok())
      return status;

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

std::string facts_json(const Device& device) {
  JsonWriter json;
  json.begin_object();
  json.field("version", concatenate(PERSEID_VERSION_MAJOR, ".", PERSEID_VERSION_MINOR, ".",
                                    PERSEID_VERSION_PATCH));
  json.field("abi_version", PERSEID_ABI_VERSION);
  json.key("device").begin_object();
  json.field("type", "cpu").field("model", cpu_model());
  json.field("cpus", cpu::available_cpus()).field("workers", device.workers());
  json.field("isa", device.kernels->isa).field("bf16_dot", device.kernels->bf16_dot);
  json.key("isas").begin_array();
  for (const cpu::KernelTable* table : cpu::available_kernel_tables()) json.value(table->isa);
  json.end_array();
  write_caches(json);
  json.field("memory_bytes",
             static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * int64_t{sysconf(_SC_PAGESIZE)});
  json.end_object();
  json.key("environment").begin_object();
  for (const Variable& variable : device.environment) {
    json.key(variable.name);
    variable.set ? json.value(variable.value) : json.null();
  }
  json.end_object().end_object();
  return json.text();
}

}  // namespace perseid::dispatch
