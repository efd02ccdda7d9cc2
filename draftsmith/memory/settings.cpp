// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/settings.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "draftsmith/base/error.h"

namespace draftsmith::memory {

void add_fields(FieldList& fields, MemorySettings& settings) {
  fields.begin_section("memory");
  fields.add(
      "budget", settings.budget,
      "most bytes the run may use, e.g. 20GiB; 0 = what the device has; see draftsmith plan");
  fields.add_choice(
      "recompute", settings.recompute, {"auto", "none", "layer"},
      "whether backward computes layers again to save their activations; auto = if it must");
}

int64_t parse_bytes(const std::string& text, const std::string& key) {
  constexpr std::array<std::pair<const char*, double>, 8> kUnits = {
      {{"", 1.0},
       {"B", 1.0},
       {"KiB", 0x1p10},
       {"MiB", 0x1p20},
       {"GiB", 0x1p30},
       {"TiB", 0x1p40},
       {"MB", 1e6},
       {"GB", 1e9}}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  unit.erase(0, unit.find_first_not_of(' '));
  for (const auto& [name, size] : kUnits)
    if (end != text.c_str() && unit == name && number >= 0 && std::isfinite(number))
      return static_cast<int64_t>(number * size);
  throw ConfigError(
      {.what = key, .expected = "bytes, such as 20GiB, 512MiB or 16GB", .got = "'" + text + "'"});
}

std::string print_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int digits = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

}  // namespace draftsmith::memory
