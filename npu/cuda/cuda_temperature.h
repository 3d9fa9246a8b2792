/* A card's temperature. */
#ifndef TD_NPU_CUDA_CUDA_TEMPERATURE_H
#define TD_NPU_CUDA_CUDA_TEMPERATURE_H

/**
 * As the driver's library for management (NVML) tells it, which the first call looks for. Any thread; it may take
 * milliseconds.
 * @param pci domain:bus:device.function of the card: the library numbers cards in another way than CUDA does.
 * @return degrees Celsius; NAN where there is no such library, or it does not tell.
 */
double td_cuda_temperature(const char *pci);

#endif
