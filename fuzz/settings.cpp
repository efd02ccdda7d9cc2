// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/run_config.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {

void read_settings(const uint8_t* data, size_t size) {
  const auto file = scratch() / "run.toml";
  write(file, {reinterpret_cast<const char*>(data), size});
  may_refuse([&] {
    app::RunConfig config;
    const auto fields = app::list_fields(config);
    app::read_settings_file(file, fields);
    // What a run writes down is what it reads on resume.
    const std::string written = app::write_settings(fields);
    write(file, written);
    app::RunConfig again;
    const auto fields_again = app::list_fields(again);
    must_not_refuse([&] { app::read_settings_file(file, fields_again); });
    DS_CHECK(app::settings_as_text(fields) == app::settings_as_text(fields_again));
    may_refuse([&] { data::list_datasets(config.data); });
  });
}

}  // namespace draftsmith::fuzz
