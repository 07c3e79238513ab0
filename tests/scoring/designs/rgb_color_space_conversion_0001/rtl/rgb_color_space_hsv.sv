// RGB to HSV in eight clocks. A name's number is the clock, counted from `valid_in`, after which the value is there.
module rgb_color_space_hsv (
    input               clk,
    input               rst,
    input               we,
    input       [7:0]   waddr,
    input      [24:0]   wdata,
    input               valid_in,
    input       [7:0]   r_component,
    input       [7:0]   g_component,
    input       [7:0]   b_component,
    output reg [11:0]   h_component,
    output reg [12:0]   s_component,
    output reg [11:0]   v_component,
    output reg          valid_out
);
    localparam [1:0] RED = 0, GREEN = 1, BLUE = 2;

    wire [11:0] red = {4'b0, r_component};
    wire [11:0] green = {4'b0, g_component};
    wire [11:0] blue = {4'b0, b_component};

    reg [7:1] valid;
    reg signed [12:0] g_sub_b [1:3];
    reg signed [12:0] b_sub_r [1:3];
    reg signed [12:0] r_sub_g [1:3];
    reg [11:0] rg_max_1, rg_min_1, blue_1, i_min_2;
    reg green_wins_1;
    reg [1:0] winner_2, winner_3;
    reg [11:0] i_max [2:7];
    reg [12:0] delta_i_3;
    reg signed [12:0] pre_hue_4;
    reg signed [18:0] pre_hue_product_5;
    reg [24:0] inv_delta_5;
    reg [8:0] offset [4:7];
    wire [24:0] inv_max_3, inv_delta_4;
    wire [25:0] saturation_6;
    reg [12:0] saturation_7;
    wire signed [11:0] hue_7;
    integer i;

    dual_port_ram inverses (
        .clk(clk),
        .we(we),
        .waddr(waddr),
        .wdata(wdata),
        .ren_a(valid[2]),
        .raddr_a(i_max[2][7:0]),
        .rdata_a(inv_max_3),
        .ren_b(valid[3]),
        .raddr_b(delta_i_3[7:0]),
        .rdata_b(inv_delta_4)
    );

    saturation_mult saturation (
        .clk(clk), .rst(rst), .a(inv_max_3), .b(delta_i_3), .result(saturation_6)
    );

    hue_mult hue (
        .clk(clk), .rst(rst), .dataa(pre_hue_product_5), .datab(inv_delta_5), .result(hue_7)
    );

    always @(posedge clk or posedge rst)
        if (rst) begin
            valid <= 0;
            for (i = 1; i <= 3; i = i + 1) begin
                g_sub_b[i] <= 0;
                b_sub_r[i] <= 0;
                r_sub_g[i] <= 0;
            end
            for (i = 2; i <= 7; i = i + 1) i_max[i] <= 0;
            for (i = 4; i <= 7; i = i + 1) offset[i] <= 0;
            {rg_max_1, rg_min_1, blue_1, green_wins_1} <= 0;
            {winner_2, winner_3, i_min_2, delta_i_3} <= 0;
            {pre_hue_4, pre_hue_product_5, inv_delta_5, saturation_7} <= 0;
            {h_component, s_component, v_component, valid_out} <= 0;
        end else begin
            valid <= {valid[6:1], valid_in};
            for (i = 2; i <= 3; i = i + 1) begin
                g_sub_b[i] <= g_sub_b[i-1];
                b_sub_r[i] <= b_sub_r[i-1];
                r_sub_g[i] <= r_sub_g[i-1];
            end
            for (i = 3; i <= 7; i = i + 1) i_max[i] <= i_max[i-1];
            for (i = 5; i <= 7; i = i + 1) offset[i] <= offset[i-1];

            g_sub_b[1] <= green - blue;
            b_sub_r[1] <= blue - red;
            r_sub_g[1] <= red - green;
            rg_max_1 <= green > red ? green : red;
            rg_min_1 <= green > red ? red : green;
            green_wins_1 <= green > red;
            blue_1 <= blue;

            i_max[2] <= blue_1 > rg_max_1 ? blue_1 : rg_max_1;
            i_min_2 <= blue_1 < rg_min_1 ? blue_1 : rg_min_1;
            winner_2 <= blue_1 > rg_max_1 ? BLUE : green_wins_1 ? GREEN : RED;

            delta_i_3 <= i_max[2] - i_min_2;
            winner_3 <= winner_2;

            case (winner_3)
                // Between magenta and red the difference is negative and the circle starts anew.
                RED: begin
                    pre_hue_4 <= g_sub_b[3];
                    offset[4] <= g_sub_b[3] < 0 ? 360 : 0;
                end
                GREEN: begin
                    pre_hue_4 <= b_sub_r[3];
                    offset[4] <= 120;
                end
                default: begin
                    pre_hue_4 <= r_sub_g[3];
                    offset[4] <= 240;
                end
            endcase

            pre_hue_product_5 <= pre_hue_4 * 19'sd60;
            inv_delta_5 <= inv_delta_4;
            saturation_7 <= saturation_6[12:0];

            valid_out <= valid[7];
            if (valid[7]) begin
                h_component <= hue_7 + $signed({1'b0, offset[7], 2'b00});
                s_component <= saturation_7;
                v_component <= i_max[7];
            end
        end
endmodule

// 1/n at address n, as a fraction of 24 bits.
module dual_port_ram (
    input               clk,
    input               we,
    input       [7:0]   waddr,
    input      [24:0]   wdata,
    input               ren_a,
    input       [7:0]   raddr_a,
    output reg [24:0]   rdata_a,
    input               ren_b,
    input       [7:0]   raddr_b,
    output reg [24:0]   rdata_b
);
    reg [24:0] memory [0:255];

    always @(posedge clk) begin
        if (we) memory[waddr] <= wdata;
        if (ren_a) rdata_a <= memory[raddr_a];
        if (ren_b) rdata_b <= memory[raddr_b];
    end
endmodule

// Fraction of 24 bits times a whole number, rounded to a fraction of 12 bits, in three clocks.
module saturation_mult (
    input               clk,
    input               rst,
    input      [24:0]   a,
    input      [12:0]   b,
    output reg [25:0]   result
);
    reg [24:0] a_held;
    reg [12:0] b_held;
    reg [38:0] product;

    always @(posedge clk or posedge rst)
        if (rst) begin
            {a_held, b_held, product, result} <= 0;
        end else begin
            a_held <= a;
            b_held <= b;
            product <= a_held * b_held;
            result <= product[38:12] + product[11];
        end
endmodule

// Signed number times a fraction of 24 bits, cut off after two bits of fraction, in two clocks.
module hue_mult (
    input                    clk,
    input                    rst,
    input signed      [18:0] dataa,
    input             [24:0] datab,
    output reg signed [11:0] result
);
    reg signed [43:0] product;

    always @(posedge clk or posedge rst)
        if (rst) begin
            product <= 0;
            result <= 0;
        end else begin
            product <= dataa * $signed({1'b0, datab});
            result <= product[33:22];
        end
endmodule
