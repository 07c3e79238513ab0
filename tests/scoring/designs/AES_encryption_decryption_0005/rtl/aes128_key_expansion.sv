module aes128_key_expansion #(
    parameter NBW_KEY = 128,
    parameter NBW_OUT = 1408
) (
    input  logic               clk,
    input  logic               rst_async_n,
    input  logic               i_start,
    input  logic [NBW_KEY-1:0] i_key,
    output logic               o_done,         // high while o_expanded_key is complete
    output logic [NBW_OUT-1:0] o_expanded_key
);

    localparam logic [3:0] LAST = NBW_OUT / 128 - 1;

    logic [0:127] round_key [0:LAST];
    logic [3:0]   newest;  // newest round key that belongs to the current key
    logic [7:0]   rcon;
    logic [0:127] key;
    logic [0:31]  rotated, substituted;
    logic [0:31]  word_0, word_1, word_2, word_3;

    assign key     = round_key[newest];
    assign rotated = {key[104:127], key[96:103]};

    for (genvar k = 0; k < 4; k++) begin : key_bytes
        sbox sub_word (.i_data(rotated[8*k +: 8]), .o_data(substituted[8*k +: 8]));
    end

    assign word_0 = key[ 0: 31] ^ substituted ^ {rcon, 24'h0};
    assign word_1 = key[32: 63] ^ word_0;
    assign word_2 = key[64: 95] ^ word_1;
    assign word_3 = key[96:127] ^ word_2;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            newest <= '0;
            rcon   <= 8'h01;
            for (int k = 0; k <= LAST; k++)
                round_key[k] <= '0;
        end else if (i_start) begin
            newest       <= '0;
            rcon         <= 8'h01;
            round_key[0] <= i_key;
        end else if (!o_done) begin
            newest              <= newest + 1'b1;
            rcon                <= {rcon[6:0], 1'b0} ^ (rcon[7] ? 8'h1b : 8'h00);
            round_key[newest+1] <= {word_0, word_1, word_2, word_3};
        end
    end

    for (genvar k = 0; k <= LAST; k++) begin : outputs
        assign o_expanded_key[NBW_OUT-1-128*k -: 128] = round_key[k];
    end

    assign o_done = newest == LAST;

endmodule
