// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

#include "draftsmith/base/error.h"

// Of AddressSanitizer, null without it.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t);
__attribute__((weak)) void
__sanitizer_finish_switch_fiber(void* saved, const void** old_bottom, size_t* old_size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);

/// Saves the registers that a call preserves on this stack, and this stack's pointer in `*from`;
/// goes on where `to` was saved.
void ds_switch_stack(void** from, void* to);
}

asm(R"(
  .text
  .type ds_switch_stack, @function
ds_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size ds_switch_stack, .-ds_switch_stack
)");

namespace draftsmith::testing {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // frames are large under AddressSanitizer

thread_local Fibre* starting = nullptr;  // the fibre that `run_body` begins

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void leave_stack(void** fake_stack, const void* bottom, size_t size) {
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}

void enter_stack(void* fake_stack, const void** old_bottom, size_t* old_size) {
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(fake_stack, old_bottom, old_size);
}

}  // namespace

Fibre::Fibre() {
  void* memory = mmap(
      nullptr, kStackBytes + page_bytes(), PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page_bytes(), PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + page_bytes();
}

Fibre::~Fibre() { munmap(stack_ - page_bytes(), kStackBytes + page_bytes()); }

void Fibre::start(std::function<void()> body) {
  DS_CHECK(is_done_);
  body_ = std::move(body);
  is_done_ = false;
  // What the last body's frames left poisoned.
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(stack_, kStackBytes);
  // As `ds_switch_stack` leaves a stack: six registers, then where to return to. At the entry of
  // a function the stack pointer is 8 below a multiple of 16.
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes);
  *--top = nullptr;  // no caller
  *--top = reinterpret_cast<void*>(&Fibre::run_body);
  for (int i = 0; i < 6; ++i)
    *--top = nullptr;
  stack_pointer_ = top;
}

void Fibre::run_body() {
  Fibre* self = starting;
  enter_stack(nullptr, &self->resumer_stack_, &self->resumer_stack_size_);
  try {
    self->body_();
  } catch (...) {
    self->thrown_ = std::current_exception();
  }
  self->is_done_ = true;
  leave_stack(nullptr, self->resumer_stack_, self->resumer_stack_size_);
  ds_switch_stack(&self->stack_pointer_, self->resumer_pointer_);
}

void Fibre::resume() {
  DS_CHECK(!is_done_);
  starting = this;
  void* fake_stack = nullptr;
  leave_stack(&fake_stack, stack_, kStackBytes);
  ds_switch_stack(&resumer_pointer_, stack_pointer_);
  enter_stack(fake_stack, nullptr, nullptr);
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void Fibre::suspend() {
  leave_stack(&fake_stack_, resumer_stack_, resumer_stack_size_);
  ds_switch_stack(&stack_pointer_, resumer_pointer_);
  enter_stack(fake_stack_, &resumer_stack_, &resumer_stack_size_);
}

}  // namespace draftsmith::testing
