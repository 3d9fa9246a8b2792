# Cross build for aarch64 on Debian: gcc-aarch64-linux-gnu, and the libraries that scripts/deps.sh aarch64 unpacked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(source "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(CMAKE_SYSROOT "${source}/build/aarch64-sysroot")
if(NOT EXISTS "${CMAKE_SYSROOT}/usr/include/aarch64-linux-gnu")
    message(FATAL_ERROR "${CMAKE_SYSROOT} has no libraries for aarch64; scripts/deps.sh aarch64 makes it")
endif()
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# pkg-config reads the unpacked packages' files alone, and puts the folder before the paths that they tell.
set(ENV{PKG_CONFIG_PATH} "")
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")

# What ctest runs the programs with. Through a script, so that a test may choose the processor (QEMU_CPU) and the script adds what always holds.
set(CMAKE_CROSSCOMPILING_EMULATOR "${source}/scripts/run_aarch64.sh")
