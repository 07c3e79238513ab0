module aes_ke #(
    parameter NBW_KEY = 256,
    parameter NBW_OUT = 1920
) (
    input  logic               clk,
    input  logic               rst_async_n,
    input  logic               i_start,
    input  logic [NBW_KEY-1:0] i_key,
    output logic               o_idle,         // high while o_expanded_key is complete
    output logic               o_done,         // high for the first of these cycles
    output logic [NBW_OUT-1:0] o_expanded_key
);

    localparam logic [3:0] LAST = NBW_OUT / 128 - 1;

    logic [0:127] round_key [0:LAST];
    logic [3:0]   newest;        // newest round key that belongs to the current key; 1 after loading
    logic [7:0]   rcon;
    logic [0:127] older, newer;  // the eight words before the next ones
    logic [0:31]  sub_in, substituted, temp;
    logic [0:31]  word_0, word_1, word_2, word_3;
    logic         rcon_step;     // first word's index is a multiple of 8, not only of 4

    assign rcon_step = newest[0];
    assign older     = round_key[newest-1];
    assign newer     = round_key[newest];
    assign sub_in    = rcon_step ? {newer[104:127], newer[96:103]} : newer[96:127];

    for (genvar k = 0; k < 4; k++) begin : key_bytes
        sbox sub_word (.i_data(sub_in[8*k +: 8]), .o_data(substituted[8*k +: 8]));
    end

    assign temp   = rcon_step ? substituted ^ {rcon, 24'h0} : substituted;
    assign word_0 = older[ 0: 31] ^ temp;
    assign word_1 = older[32: 63] ^ word_0;
    assign word_2 = older[64: 95] ^ word_1;
    assign word_3 = older[96:127] ^ word_2;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            newest <= 1;
            rcon   <= 8'h01;
            o_done <= 1'b0;
            for (int k = 0; k <= LAST; k++)
                round_key[k] <= '0;
        end else if (i_start) begin
            newest       <= 1;
            rcon         <= 8'h01;
            o_done       <= 1'b0;
            round_key[0] <= i_key[255:128];
            round_key[1] <= i_key[127:0];
        end else begin
            o_done <= newest == LAST - 1;
            if (!o_idle) begin
                newest              <= newest + 1'b1;
                round_key[newest+1] <= {word_0, word_1, word_2, word_3};
                if (rcon_step)
                    rcon <= {rcon[6:0], 1'b0};
            end
        end
    end

    for (genvar k = 0; k <= LAST; k++) begin : outputs
        assign o_expanded_key[NBW_OUT-1-128*k -: 128] = round_key[k];
    end

    assign o_idle = newest == LAST;

endmodule
