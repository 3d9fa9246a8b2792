# The kernels of npu/cuda as a library for the CPU. C++ is the language of CUDA's sources; nothing else here needs it.
# Fused operations are written out, so they and IEEE's division have the same bits on every processor that has them.
add_library(td_cuda_options INTERFACE)
# Named, though it is the default of gcc 12: clang 14 reads the same commands.
target_compile_options(td_cuda_options INTERFACE -std=gnu++17 -Wall -Wextra -Wshadow -Wno-unknown-pragmas -ffp-contract=off -fvisibility=hidden -U_FORTIFY_SOURCE
                       -ftls-model=initial-exec # a few words of a thread, which every warp operation looks at
                       $<$<BOOL:${TD_WERROR}>:-Werror>)
target_include_directories(td_cuda_options INTERFACE ${PROJECT_SOURCE_DIR})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(td_cuda_options INTERFACE -mavx2 -mfma)
endif()
if(TD_SANITIZE)
    target_compile_options(td_cuda_options INTERFACE -fsanitize=${TD_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(td_cuda_options INTERFACE -fsanitize=${TD_SANITIZE})
endif()

# td_emulated_kernels(TARGET SOURCE)
function(td_emulated_kernels target source)
    add_library(${target} SHARED ${source} cuda_emulation.cpp)
    target_link_libraries(${target} PRIVATE td_cuda_options Threads::Threads)
endfunction()
td_emulated_kernels(tandem_cuda_kernels_emulated cuda_kernels.cpp)
td_emulated_kernels(cuda_emulation_kernels emulation_kernels.cpp)
# What cuModuleLoadData of the stand-in takes: the emulated kernels, as PTX that any card takes.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/cuda_standin/kernels.image
     CONTENT "tandem cuda stand-in image\ncompute_80\n$<TARGET_FILE:tandem_cuda_kernels_emulated>\n")
td_test(test_cuda_emulation LABELS quick cuda-emulated SOURCES test_cuda_emulation.c LIBS cuda_emulation_kernels)
