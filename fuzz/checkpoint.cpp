// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/bad_step.h"
#include "draftsmith/train/checkpoint.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {

void read_checkpoint(const uint8_t* data, size_t size) {
  const Input input(data, size, 3);
  const auto folder = empty_folder("checkpoint");
  if (input.way == 0) {
    for (const char* name : {"config.json", "model.safetensors", "optimizer.safetensors"})
      write(folder / name, "x");
    write(folder / "state.json", "x");
    write(folder / "manifest.json", input.rest);
    train::find_damage(folder);
    return;
  }
  if (input.way == 2) {
    const auto file = folder / "bad_batches/step-1-batch-0.json";
    std::filesystem::create_directories(file.parent_path());
    write(file, input.rest);
    may_refuse([&] {
      const auto replay = train::read_bad_step(file);
      DS_CHECK(replay.weights_step >= 0 && replay.run_folder == folder);
      DS_CHECK(replay.cursors.size() == replay.sequences.size());
    });
    return;
  }
  write(folder / "state.json", input.rest);
  may_refuse([&] { DS_CHECK(train::read_progress(folder).step >= 0); });
  may_refuse([&] { train::read_stamp(folder); });
  may_refuse([&] { DS_CHECK(train::read_schedule(folder).total_steps > 0); });
}

}  // namespace draftsmith::fuzz
