module awgn #(
    parameter DATA_WIDTH = 16,
    parameter LUT_SIZE   = 16
) (
    input  logic        [$clog2(LUT_SIZE)-1:0] noise_index,
    input  logic signed [DATA_WIDTH-1:0]       signal_in,
    input  logic signed [DATA_WIDTH-1:0]       noise_scale,
    output logic signed [DATA_WIDTH-1:0]       signal_out
);
    localparam FRAC = DATA_WIDTH - 3;

    logic signed [DATA_WIDTH-1:0]   noise;
    logic signed [2*DATA_WIDTH-1:0] scaled;

    // Samples in Q2.13; an index beyond the sixteen of the table adds nothing.
    always_comb
        case (noise_index)
            0:       noise = 2048;
            1:       noise = -1024;
            2:       noise = 128;
            3:       noise = -3072;
            4:       noise = 1024;
            5:       noise = -2048;
            6:       noise = 3072;
            7:       noise = -128;
            8:       noise = 0;
            9:       noise = 512;
            10:      noise = -512;
            11:      noise = 256;
            12:      noise = -256;
            13:      noise = 768;
            14:      noise = -768;
            default: noise = 0;
        endcase

    assign scaled     = noise * noise_scale;
    assign signal_out = signal_in + DATA_WIDTH'(scaled >>> FRAC);
endmodule
