// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>

#include <c10/util/Exception.h>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/memory/host_allocator.h"

namespace {

/// OpenMP's threads wait for each other by spinning. With its default count two programs that
/// share a machine's cores slow each other down ten times and more. libgomp reads the variable
/// when it is loaded, so it must be set before: entries of .preinit_array run first of all.
void choose_spin_count(int, char**, char**) { ::setenv("GOMP_SPINCOUNT", "2000", /*overwrite=*/0); }

__attribute__((section(".preinit_array"), used)) void (*const kChooseSpinCount)(int, char**, char**) =
    &choose_spin_count;

constexpr int kExitDevice = 5;
constexpr int kExitBug = 70;

}  // namespace

int main(int argc, char** argv) {
  draftsmith::memory::install_host_allocator();
  try {
    return draftsmith::app::run_command_line(argc, argv);
  } catch (const draftsmith::Error& error) {
    draftsmith::log_line(error.what());
    return error.exit_code();
  } catch (const c10::OutOfMemoryError& error) {
    draftsmith::log_line(error.what_without_backtrace());
    return kExitDevice;
  } catch (const std::bad_alloc&) {
    draftsmith::log_line("memory: expected enough for this run, got none left. Try smaller batches.");
    return kExitDevice;
  } catch (const c10::Error& error) {
    draftsmith::log_line(std::string("a bug in draftsmith: ") + error.what_without_backtrace());
    return kExitBug;
  } catch (const std::exception& error) {
    draftsmith::log_line(std::string("a bug in draftsmith: ") + error.what());
    return kExitBug;
  }
}
