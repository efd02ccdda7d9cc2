// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>

namespace draftsmith::testing {

/// A function on a stack of its own, which can stop in its middle and go on later, all in one
/// thread of the system. x86-64 only.
class Fibre {
 public:
  Fibre();
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// What the next `resume` begins. The fibre is not in the middle of anything.
  void start(std::function<void()> body);

  /// Runs the body until it suspends or ends. Rethrows what leaves the body.
  void resume();

  /// Within the body: back to who resumed it.
  void suspend();

  bool is_done() const { return is_done_; }

 private:
  static void run_body();

  std::byte* stack_;  // with a page below that nobody may touch
  void* stack_pointer_ = nullptr;
  void* resumer_pointer_ = nullptr;
  std::function<void()> body_;
  std::exception_ptr thrown_;
  bool is_done_ = true;

  // What AddressSanitizer must know of the stacks.
  void* fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_size_ = 0;
};

}  // namespace draftsmith::testing
