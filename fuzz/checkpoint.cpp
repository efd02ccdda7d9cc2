// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {

void read_checkpoint(const uint8_t* data, size_t size) {
  const Input input(data, size, 2);
  const auto folder = empty_folder("checkpoint");
  if (input.way == 0) {
    for (const char* name : {"config.json", "model.safetensors", "optimizer.safetensors"})
      write(folder / name, "x");
    write(folder / "state.json", "x");
    write(folder / "manifest.json", input.rest);
    train::find_damage(folder);
    return;
  }
  write(folder / "state.json", input.rest);
  may_refuse([&] { DS_CHECK(train::read_progress(folder).step >= 0); });
  may_refuse([&] { train::read_stamp(folder); });
  may_refuse([&] { DS_CHECK(train::read_schedule(folder).total_steps > 0); });
}

}  // namespace draftsmith::fuzz
